"""What operators and tools request: topics and groups, lookups, stuck groups, dead letters."""
