"""Pages about this gateway: health, version, settings, store, copies, and the cluster behind it."""
