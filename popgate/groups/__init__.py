"""Consumer groups in the domain: how long messages rest, how a group stands, how a client fared.

A *delay level* is one of RocketMQ's 18; a *retry policy* says when a message comes again; a *verdict* is how
a client fared with a message that it was made to consume.
"""
