"""Limits the rate of requests. The default sets no limit; a token bucket per client is the alternative."""

from __future__ import annotations

from popgate.context import Context
from popgate.kinds import Action, Resource


class Unlimited:
    """Grants everything."""

    __slots__ = ()

    def take(self, context: Context, action: Action, resource: Resource, amount: int, now: float) -> float:
        return 0.0


class PerClient:
    """A token bucket per client: `rate` per second on average, `burst` at once.

    A request is granted while the bucket is not empty and may overdraw it, so that a batch larger
    than the burst is not refused for ever. Buckets that are full again are forgotten; there are at
    most `max_clients`, and when more clients than that are busy the newcomers share one.
    """

    def __init__(self, *, rate: float, burst: float = 0.0, max_clients: int = 10_000) -> None:
        if not rate > 0:
            raise ValueError("the rate must be above 0")
        self._rate = rate
        self._burst = max(burst, rate, 1.0)
        self._max_clients = max_clients
        self._buckets: dict[str, tuple[float, float]] = {}

    def __repr__(self) -> str:
        return f"<PerClient {self._rate}/s burst {self._burst} clients {len(self._buckets)}>"

    def take(self, context: Context, action: Action, resource: Resource, amount: int, now: float) -> float:
        # By its account, too: anybody may name its id, and would use up what it may do.
        client = context.client_key if context.client_id else context.peer
        if client not in self._buckets and len(self._buckets) >= self._max_clients:
            self._forget_full(now)
            if len(self._buckets) >= self._max_clients:
                client = ""
        tokens, since = self._buckets.get(client, (self._burst, now))
        tokens = min(self._burst, tokens + max(now - since, 0.0) * self._rate)
        if tokens <= 0.0:
            self._buckets[client] = (tokens, now)
            return max((1.0 - tokens) / self._rate, 0.001)
        self._buckets[client] = (tokens - amount, now)
        return 0.0

    def _forget_full(self, now: float) -> None:
        rate, burst = self._rate, self._burst
        self._buckets = {
            client: (tokens, since)
            for client, (tokens, since) in self._buckets.items()
            if tokens + (now - since) * rate < burst
        }
