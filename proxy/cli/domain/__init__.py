"""Commands about topics, groups, messages and clients."""
