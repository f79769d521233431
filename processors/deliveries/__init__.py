"""Messages that clients of this gateway hold.

*Auto-renewal* extends the invisible time while the client is connected; *release* frees messages when it is
gone.
"""
