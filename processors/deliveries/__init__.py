"""Messages that clients of this gateway hold.

*Auto-renewal* prolongs the invisible time while the client is there; *release* frees them when it is gone.
"""
