"""Sends, recalls of delayed messages, and replies to requests.

A *plan* assigns each message a queue by the *queue selector*; the *send batcher* puts messages of one turn of
the event loop into one request; *broker latency* keeps slow brokers out of the choice.
"""
