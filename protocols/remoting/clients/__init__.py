"""Classic clients: their heartbeats and their memberships in groups."""
