"""Classic clients: their heartbeats, and the groups they are members of."""
