"""The gRPC door: RocketMQ 5 clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from protocols.adapter import Adapter, AdapterContext, Listen

FIRST_BYTES: Final = frozenset(b"P")
"""A connection of HTTP/2 without TLS begins with "PRI * HTTP/2.0" (RFC 9113, section 3.4)."""
ALPN: Final = "h2"
"""What is agreed on inside of TLS (RFC 9113, section 3.2)."""


def make_adapter(listen: Listen, adapter_context: AdapterContext) -> Adapter:
    """A gRPC server for this address, not started. Raises ValueError for options it does not know."""
    # Not at the top: whoever needs the messages alone (`popgate.pb`) should not load a server.
    from protocols.grpc.adapter import GrpcAdapter

    return GrpcAdapter(listen, adapter_context)


def listens_by_itself(listen: Listen) -> bool:
    """grpc.aio cannot serve connections that another process accepted."""
    return listen.options.get("transport") == "grpcio"


def load(listen: Listen) -> None:
    """Load what serves this address."""
    import protocols.grpc.adapter

    if listens_by_itself(listen):
        import protocols.grpc.servers.grpcio_server  # noqa: F401
