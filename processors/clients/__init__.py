"""Clients of this gateway: who they are, and what they are told and asked."""
