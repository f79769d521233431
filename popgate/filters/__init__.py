"""Filter expressions of consumers: compiled once, by tag here and by SQL in `popgate.sql`."""
