"""Clients of this gateway: who they are, what the cluster is told of them, and what they are asked."""
