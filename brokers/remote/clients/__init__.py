"""Clients of this gateway, as the brokers of the cluster know them.

The *registry* has the clients that are connected; *registration* reports them to the brokers by *heartbeats*,
over connections that clients share as *slots*. Brokers send *client requests* back over these: what a client
runs, a message to consume, changes of a group.
"""
