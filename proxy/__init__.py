"""The gateway as a program: settings, life cycle, administration, command line."""
