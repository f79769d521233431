"""Half messages, their ends and checks."""
