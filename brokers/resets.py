"""What a broker may be able to do about resets beside the port, as those of `brokers.capabilities`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from popgate.context import Context


class HoldsResets(ABC):
    """Accepts no old position of a reader after a reset, until one has begun to read from there.

    So a reader learns of a reset that was made elsewhere. In RocketMQ a pop ends it, too; in the embedded
    broker it does not, but ten minutes do (`brokers.embedded.engine.pending_resets`).
    """

    @abstractmethod
    async def begin_read(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> int:
        """A reader that was told its group's position begins there: a pending reset is over.

        Where it is to begin: somewhere else when another reset was made since.
        """

    @abstractmethod
    async def commit_read(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> int | None:
        """As `brokers.port.Offsets.commit`, by a reader; where a reset sends it that waits for it.

        Raises as `commit`.
        """

    @abstractmethod
    async def reset_queue(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> None:
        """As `brokers.port.Directory.reset`, of one queue, to an offset. Raises as `commit`."""
