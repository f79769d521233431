"""Clients of this gateway, as the brokers of the cluster know them.

The *registry* holds who is here; *registration* tells the brokers by *heartbeats*, over *links* of the
client's own, on which brokers send *client requests* back: checks of transactions, questions of operators.
"""
