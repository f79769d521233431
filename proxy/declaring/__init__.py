"""Topics and groups declared in a file: read, checked, and written again."""
