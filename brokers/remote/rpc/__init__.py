"""Remoting connections to brokers and name servers.

A *connection* carries many requests at once to one address. The *connection pool* keeps one for all requests
of the gateway itself, and further ones by number, since a broker knows one client per group and connection.
*Inbound* requests are those that a broker sends to its clients.
"""
