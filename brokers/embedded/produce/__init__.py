"""What happens before a message is in the log: duplicates are recognised, delayed ones wait."""
