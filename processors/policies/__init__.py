"""Matters of opinion, each one small object that can be replaced by name. Protocols: `popgate.kinds`."""
