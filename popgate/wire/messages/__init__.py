"""Messages as bytes: records, batches, properties, hosts, and compressed bodies."""
