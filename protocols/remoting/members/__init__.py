"""Members of groups: their lists, and notices of changes and resets."""
