"""How a host and a guest meet: addresses, versions, the proof of the secret, and the clients of each."""
