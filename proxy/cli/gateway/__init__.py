"""Commands about a gateway: serve it, check and compare its settings, keep copies, see its cluster."""
