"""What doors and brokers share of TLS: revocation lists, renewed files, refused certificates."""
