"""The admin port: health, metrics, and the JSON interface under /api/ that the command line uses."""
