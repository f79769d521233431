"""All of the state, and the loops that work on it in the background."""
