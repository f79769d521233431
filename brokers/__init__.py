"""Storage: the `Broker` port and what implements it."""
