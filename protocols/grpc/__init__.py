"""The gRPC door: RocketMQ 5 clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocols.adapter import Adapter, House, Listen


def make_adapter(listen: Listen, house: House) -> Adapter:
    """A gRPC server for this address, not started. Raises ValueError for options it does not know."""
    # Not at the top: whoever needs the messages alone (`protocols.grpc.pb`) should not load a server.
    from protocols.grpc.adapter import GrpcAdapter

    return GrpcAdapter(listen, house)
