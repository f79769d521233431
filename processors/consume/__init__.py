"""Receives, acknowledgements, and the groups that need more than a pop: lite, broadcast, classic."""
