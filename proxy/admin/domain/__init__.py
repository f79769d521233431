"""Pages about topics, groups, messages and clients."""
