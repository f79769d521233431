"""The methods about lite topics."""
