"""Servers that carry the RPCs: the gateway's own HTTP/2, and grpc.aio."""
