"""Topics, consumer groups and their configuration, as brokers keep them."""
