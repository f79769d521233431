"""Certificates of doors: those of the settings, and the self-signed one."""
