"""Settings: their tables, where they come from, and what they are for the parts of the gateway."""
