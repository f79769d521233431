"""Reloads of a running gateway: settings are read, compared, and applied as a whole or not at all.

A *change* is a setting whose value differs from that of the running gateway. Its *effect* is when the new
value applies: `live`, at once; `listeners`, when the listeners are reopened, which their clients learn by
GOAWAY; `restart`, after a restart of the process. A *reload* is one transaction: after a fault nothing has
changed.
"""
