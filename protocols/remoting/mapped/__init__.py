"""Classic push consumers served by pop: messages, not queues, are shared.

A pull becomes a pop, what it brings is numbered for its client, and the client's commit acknowledges it.
Facts about such clients: protocol facts 5.5, 5.13 and 7.8; what holds: any-replica, section 5.
"""
