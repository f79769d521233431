"""Sends, recalls of delayed messages, and replies to requests.

Delayed messages are kept by the cluster's brokers: `send_request` sets the delivery time in their properties.

A *plan* assigns each message a queue by the *queue selector*; the *send batcher* puts messages of one turn of
the event loop into one request; *broker latency* keeps slow brokers out of the choice.
"""
