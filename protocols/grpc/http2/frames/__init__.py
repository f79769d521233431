"""The frames and streams of one HTTP/2 connection (RFC 9113), without any knowledge of gRPC.

The *send half* keeps the peer's windows; the *lifetime* covers timeouts, the end, and exceeded
limits; *control frames* are about the connection, or about a stream but no part of a request; *held requests*
are read later.
"""
