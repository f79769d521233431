"""The methods of the broker port, by what they are about."""
