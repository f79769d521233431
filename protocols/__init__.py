"""The doors: one folder per protocol, found by its URL scheme."""
