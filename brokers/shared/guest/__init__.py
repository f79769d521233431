"""The guest's parts of the broker, each of which asks the host over one *host link*."""
