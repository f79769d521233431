"""New settings for a gateway that serves: read, compared, and taken as a whole or not at all.

A *change* is a setting whose value differs from that of the running gateway. Its *effect* is when the new
value counts: `live`, at once and unnoticed; `listeners`, when the listeners are opened anew, which their
clients are told by GOAWAY; `restart`, not before the process is started anew. A *reload* is one transaction:
after a fault everything is as it was.
"""
