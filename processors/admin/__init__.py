"""What operators and tools ask for: topics and groups, stuck groups, dead letters, commands for brokers."""
