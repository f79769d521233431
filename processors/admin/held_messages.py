"""The messages that a group holds, as an operator sees and selects them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, unique

from popgate.errors import BadRequest, Fault, NotFound, ReceiptExpired, shown
from popgate.ids.receipt import Receipt, parse_receipt
from popgate.model import GroupStatus, Held

MOST_HELD = 256
"""Held messages of a group that are looked at."""


@unique
class HeldState(Enum):
    """The state of a message that is not available now."""

    HELD = "held"
    RESTING = "resting"
    """Its client gave it back after a failure, and it rests until its time."""


@dataclass(slots=True, frozen=True)
class HeldMessage:
    """A held message of a group. `group`: of a broadcast group the hidden one of its client, `client`."""

    group: str
    held: Held
    grip: HeldState
    client: str = ""


@dataclass(slots=True, frozen=True)
class MemberProgress:
    """The progress of one client of a broadcast group over all topics that it reads."""

    client_id: str
    lag: int
    in_flight: int


@dataclass(slots=True, frozen=True)
class Explanation:
    """The state of a group and its reasons. `grasps`: what is held, longest first; the list may be cut.

    `reasons` are sentences for a person. `consumers`: those that this replica knows. `members`: clients
    of a broadcast group, those that hold the most first, then those that lag the most; not all of many.
    `whole`: the broker tells what is held (`Traits.tells_deliveries`); else nothing is known of that.
    """

    group: str
    now_ms: int
    enabled: bool
    ordered: bool
    consumers: int
    standings: tuple[GroupStatus, ...]
    grasps: tuple[HeldMessage, ...]
    reasons: tuple[str, ...]
    members: tuple[MemberProgress, ...] = ()
    whole: bool = True


@dataclass(slots=True, frozen=True)
class Freed:
    """A message that an operator freed. `dead_lettered`: that was its last attempt, so it went there."""

    grasp: HeldMessage
    dead_lettered: bool


def is_delivery(receipt: str, held: Held) -> bool:
    """Whether a receipt, maybe one of before a renewal, is for this delivery."""
    named, own = parse_receipt(receipt), parse_receipt(held.receipt)
    return _place(named) == _place(own) and named.pop_ms == own.pop_ms


def choose(group: str, grasps: Sequence[HeldMessage], which: str) -> HeldMessage:
    """The held message that the request selects. Raises NotFound, BadRequest, ReceiptExpired."""
    if not which:
        fitting = list(grasps)
    elif " " in which:
        receipt = parse_receipt(which)
        there = [g for g in grasps if _place(parse_receipt(g.held.receipt)) == _place(receipt)]
        fitting = [grasp for grasp in there if is_delivery(which, grasp.held)]
        if there and not fitting:
            raise ReceiptExpired(which, "the message was delivered again since")
    else:
        fitting = [grasp for grasp in grasps if grasp.held.message_id == which]
    if not fitting:
        wanted = f"message {shown(which)}" if which else "any message"
        raise NotFound(
            f"group {group} does not hold {wanted} (or holds {MOST_HELD} others for longer)",
            Fault.MESSAGE_NOT_FOUND,
        )
    if len(fitting) > 1:
        raise BadRequest(
            f"group {group} holds {len(fitting)} messages that fit: say which one, by its receipt"
            + ("" if which else " or its message id")
            + (", or the client that holds it" if fitting[0].client else "")
        )
    return fitting[0]


def _place(receipt: Receipt) -> tuple[str, int, int, int]:
    """The message of a receipt. For lite topics a broker may report a held message at another place."""
    return receipt.broker, receipt.queue_id, receipt.offset, receipt.commit_offset


def together(standing: GroupStatus, other: GroupStatus) -> GroupStatus:
    """Of the members of a broadcast group."""
    return GroupStatus(
        group=standing.group,
        topic=standing.topic,
        lag=standing.lag + other.lag,
        unread=standing.unread + other.unread,
        free=standing.free + other.free,
        in_flight=standing.in_flight + other.in_flight,
        behind=standing.behind + other.behind,
        refused=standing.refused + other.refused,
        receivers=standing.receivers + other.receivers,
        full=standing.full or other.full,
        redelivered=standing.redelivered + other.redelivered,
        dead_lettered=standing.dead_lettered + other.dead_lettered,
    )
