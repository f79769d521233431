"""What doors and brokers share of TLS: revocation lists, renewed files, and the log of refused clients."""
