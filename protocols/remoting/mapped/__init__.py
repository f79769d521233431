"""Classic push consumers served by pop: they share messages, not queues.

A pull becomes a pop, its messages are numbered for the client, and the client's commit acknowledges them.
Facts about such clients: protocol facts 5.5, 5.13 and 7.8; guarantees: any-replica, section 5.
"""
