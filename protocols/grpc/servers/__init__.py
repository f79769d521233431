"""Servers that carry the RPCs: HTTP/2 of our own, and grpc.aio."""
