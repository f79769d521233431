"""Certificates of doors: those of the settings, and those that a gateway makes for itself."""
