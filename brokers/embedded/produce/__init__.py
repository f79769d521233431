"""What happens before a message is stored in the log: duplicates are recognised, delayed messages wait."""
