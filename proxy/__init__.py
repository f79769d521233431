"""The house as a program: settings, life cycle, administration, command line."""
