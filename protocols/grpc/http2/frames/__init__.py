"""One connection of HTTP/2 (RFC 9113) by its frames and streams, knowing nothing of gRPC.

The *send half* keeps the peer's windows; the *lifetime* is what happens by time, at the end, and beyond the
limits; *control frames* are about the connection, or about a stream but no part of a request; *held requests*
are read later.
"""
