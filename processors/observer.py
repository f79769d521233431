"""Reports events to the metrics: one plain call per request, never per message."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final, Generic, Protocol, TypeVar

from popgate.errors import Fault, GatewayError
from popgate.model import Resolution

_Listener = TypeVar("_Listener")
DoorFigures = Callable[[], dict[str, float]]
"""What a door tells of itself."""

_OF_DOORS: Final = (
    "mapped_held",
    "mapped_renewed_total",
    "mapped_window_pauses_total",
    "mapped_given_back_gone_total",
    "mapped_given_back_restarted_total",
    "mapped_given_back_switched_total",
    "mapped_given_back_unread_total",
)


class DoorSums:
    """The sums of the doors' figures, 0 without doors. Totals of closed doors remain included."""

    def __init__(self) -> None:
        self._doors: list[DoorFigures] = []
        self._before = dict.fromkeys(_OF_DOORS, 0.0)

    def __repr__(self) -> str:
        return f"<DoorSums of {len(self._doors)}>"

    def add(self, door: DoorFigures) -> Callable[[], None]:
        """What is returned is called, once, when the door is closed: nothing refers to it afterwards."""
        self._doors.append(door)

        def remove() -> None:
            self._doors.remove(door)
            for name, value in door().items():
                if name.endswith("_total"):
                    self._before[name] += value

        return remove

    def figures(self) -> dict[str, float]:
        figures = dict(self._before)
        for door in self._doors:
            for name, value in door().items():
                figures[name] += value
        return figures


class Latest(Generic[_Listener]):
    """The current listener: of those that are registered, the one that was registered last."""

    def __init__(self, nobody: _Listener) -> None:
        """`nobody` counts while none is here."""
        self._nobody = self.now = nobody
        self._here: list[_Listener] = []

    def __repr__(self) -> str:
        return f"<Latest of {len(self._here)}>"

    def add(self, listener: _Listener) -> Callable[[], None]:
        """What is returned is called, once, when it goes."""
        self._here.append(listener)
        self.now = listener

        def remove() -> None:
            self._here.remove(listener)
            self.now = self._here[-1] if self._here else self._nobody

        return remove


class Observer(Protocol):
    """Implemented by the metrics. Calls are cheap and never raise; `seconds` is a request's time."""

    def sent(self, topic: str, count: int, size: int, seconds: float) -> None:
        """`count` messages with bodies of `size` bytes together were stored."""

    def received(self, topic: str, group: str, count: int, size: int, seconds: float) -> None:
        """A receive was answered with `count` messages, 0 for an empty one."""

    def pulled(self, topic: str, group: str, count: int, size: int, seconds: float) -> None:
        """A read by offset was answered."""

    def acked(self, topic: str, group: str, count: int, refused: int, seconds: float) -> None:
        """`count` deliveries were finished and `refused` handles were not good."""

    def changed(self, topic: str, group: str, seconds: float) -> None:
        """A client set a new invisible time: a renewal, or a negative acknowledgement."""

    def dead_lettered(self, topic: str, group: str) -> None:
        """A client sent a message to the dead letters."""

    def redriven(self, group: str, count: int) -> None:
        """Dead letters were given to their group again."""

    def returned(self, topic: str, group: str, count: int) -> None:
        """Messages that did not reach their client were returned."""

    def renewed(self, topic: str, group: str, count: int) -> None:
        """The gateway renewed deliveries of a consumer that works longer than the consume timeout."""

    def released(self, topic: str, group: str, count: int) -> None:
        """Deliveries of a client that left were freed."""

    def recalled(self, topic: str) -> None:
        """A delayed message was taken back."""

    def ended(self, topic: str, resolution: Resolution, seconds: float) -> None:
        """A producer ended a transaction."""

    def checked(self, topic: str, asked: bool) -> None:
        """A broker checked a half message; `asked`: whether a producer was found for it."""

    def created(self, kind: str, name: str) -> None:
        """A topic or a group was made on first use."""

    def failed(self, operation: str, fault: Fault) -> None:
        """A request, or one message of it, was refused or failed."""


class NullObserver:
    """Counts nothing."""

    __slots__ = ()

    def sent(self, topic: str, count: int, size: int, seconds: float) -> None: ...
    def received(self, topic: str, group: str, count: int, size: int, seconds: float) -> None: ...
    def pulled(self, topic: str, group: str, count: int, size: int, seconds: float) -> None: ...
    def acked(self, topic: str, group: str, count: int, refused: int, seconds: float) -> None: ...
    def changed(self, topic: str, group: str, seconds: float) -> None: ...
    def dead_lettered(self, topic: str, group: str) -> None: ...
    def redriven(self, group: str, count: int) -> None: ...
    def returned(self, topic: str, group: str, count: int) -> None: ...
    def renewed(self, topic: str, group: str, count: int) -> None: ...
    def released(self, topic: str, group: str, count: int) -> None: ...
    def recalled(self, topic: str) -> None: ...
    def ended(self, topic: str, resolution: Resolution, seconds: float) -> None: ...
    def checked(self, topic: str, asked: bool) -> None: ...
    def created(self, kind: str, name: str) -> None: ...
    def failed(self, operation: str, fault: Fault) -> None: ...


class Watch:
    """Reports a request that fails: `with watch: ...`; holds nothing of the request, so it is made once."""

    __slots__ = ("_observer", "_operation")

    def __init__(self, observer: Observer, operation: str) -> None:
        self._observer = observer
        self._operation = operation

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, GatewayError):
            self._observer.failed(self._operation, error.fault)
