"""The host: it serves its broker to guests, and answers what only all gateways together know."""
