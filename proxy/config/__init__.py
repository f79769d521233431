"""Settings: their tables, their sources, and their conversion for the parts of the gateway."""
