"""Remoting connections to brokers and name servers.

A *connection* carries many requests at once to one address; *connections* keep one per address and class of
request; *inbound* requests are those that a broker sends to its clients over the same connection.
"""
