"""The doors: one package per protocol, found by its URL scheme."""
