"""Messages that pass through as bytes: as they came from a sender, or as they are stored."""
