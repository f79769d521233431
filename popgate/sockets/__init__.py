"""Sockets of asyncio: wire machines on transports, closing of servers, Unix domain sockets."""
