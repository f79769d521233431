"""Sessions between a host and a guest: addresses, versions, the proof of the secret, and clients."""
