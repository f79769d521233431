"""Topics and groups with their configuration."""
