"""The messages of topics by queue and offset, and how old ones are removed."""
