"""The error for a configuration that cannot be used."""

from __future__ import annotations


class SettingsWrong(Exception):
    """The configuration cannot be used; the text is for the operator."""
