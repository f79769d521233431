"""Clients of this gateway, as the brokers of the cluster know them.

The *registry* holds who is here; *registration* tells the brokers by *heartbeats*, over connections that
clients share as *slots*. Brokers send *client requests* back on them: what a client runs, a message to
consume, changes of a group.
"""
