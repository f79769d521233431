"""Commands about a gateway: run it, check and compare its settings, back it up, show its cluster."""
