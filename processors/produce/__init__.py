"""Sends: what is checked before a message goes to the broker, and in which form it goes there."""
