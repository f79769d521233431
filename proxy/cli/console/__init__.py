"""Shared by all commands: options, output, failures, and the client of the admin port."""
