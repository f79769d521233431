"""Messages that clients of this gateway hold.

*Auto-renewal* prolongs the invisible time while the client is there; the *release* frees them when it is gone.
"""
