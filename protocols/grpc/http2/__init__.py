"""HTTP/2 under gRPC, as far as a server of gRPC needs it: machines without sockets (RFC 9113, RFC 7541)."""
