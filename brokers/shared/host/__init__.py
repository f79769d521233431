"""The host: it serves its broker to guests, and gathers what only all gateways together can answer."""
