"""Makes a broker learn a new version of a client that it already knows.

A broker keeps the first version that it received on a connection, until it removes the client. It handles
heartbeats and removals in different threads, so that an earlier heartbeat may take effect after the
removal: then it has the old version again, for as long as the connection lasts. So the version that it has
is read back. Source: RocketMQ 5.5.0, BrokerController.registerProcessor, ConsumerGroupInfo.updateChannel.
"""

from __future__ import annotations

from brokers.channel import Speaker
from brokers.remote.rpc.connection_pool import ConnectionPool
from popgate.errors import PeerWireError
from popgate.wire.bodies.heartbeats import ConsumerConnection
from popgate.wire.frames.codes import RequestCode, ResponseCode

_TRIES = 3


class VersionUpdate:
    """Updates a member's version at brokers."""

    def __init__(self, links: ConnectionPool, timeout_s: float) -> None:
        self._links = links
        self._timeout_s = timeout_s

    async def tell(
        self, address: str, link: int, client_id: str, group: str, heartbeat: bytes, speaker: Speaker
    ) -> bool:
        """Have one broker forget the member and register it again; whether it has the version now.

        Raises GatewayError when the broker does not answer.
        """
        fields = {"clientID": client_id, "consumerGroup": group}
        for _ in range(_TRIES):
            for code, header, body in (
                (RequestCode.UNREGISTER_CLIENT, fields, b""),
                (RequestCode.HEART_BEAT, {}, heartbeat),
            ):
                await self._links.call(
                    address, code, header, body, timeout_s=self._timeout_s, link=link, speaker=speaker
                )
            if await self._version(address, link, client_id, group) in (None, speaker[1]):
                return True
        return False

    async def _version(self, address: str, link: int, client_id: str, group: str) -> int | None:
        """The version that a broker has of a member; None: it does not say."""
        answer = await self._links.call(
            address,
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            {"consumerGroup": group},
            timeout_s=self._timeout_s,
            link=link,
        )
        if answer.code != ResponseCode.SUCCESS:
            return None
        try:
            connections = ConsumerConnection.decode(answer.body).connections
        except PeerWireError:
            return None
        return next(
            (connection.version for connection in connections if connection.client_id == client_id), None
        )
