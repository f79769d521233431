"""Members of groups: lists of them, and what they are told of changes and resets."""
