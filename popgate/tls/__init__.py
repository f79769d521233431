"""Files of TLS that doors and brokers share: revocation lists, and the watch over files that are renewed."""
