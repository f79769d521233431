"""Policies, each a small object that can be replaced by name. Protocols: `popgate.kinds`."""
