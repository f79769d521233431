"""Sends: the checks before a message goes to the broker, and the form in which it goes there."""
