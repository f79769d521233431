"""Requests of consumers."""
