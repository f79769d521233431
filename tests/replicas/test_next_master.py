"""What the next master gives out once more has a cause in its books, and anything else has none."""

from __future__ import annotations

from collections import Counter

import pytest

from popgate.ids.receipt import OF_RETRY_V1, OF_TOPIC, Receipt
from tests.cluster.records import UNHEARD_S, UNWRITTEN_S, Fault
from tests.replicas.ledger import MASTER_LOST, NEXT_MASTER, Delivery, Fate, Ledger
from tests.replicas.next_master import CLEARED_S, READ_WITHIN_S, Revival

GROUP, BODY, HOLD_S = "readers", "body", 5.0
DIED, NEXT = 100.0, 102.0
"""When a master died, and when the next one was there."""
FAR = NEXT + UNHEARD_S + 1.0
"""So late that the death alone is no cause of what was received then."""


class Books(Ledger):
    """A ledger of one message, of which clients got what the books say that they were given."""

    def __init__(self) -> None:
        super().__init__(rocketmq=True, readers={GROUP: "t"}, faults=[Fault(DIED, lasting_s=NEXT - DIED)])

    def read(self, at: float, fate: Fate = Fate.DONE) -> Delivery:
        """Received from the topic."""
        return self._deliver(at, fate, OF_TOPIC, (1, 7))

    def revive(self, popped: float, stored: float, times: int = 0, *, at: float = 0.0) -> None:
        """Stored anew; received `at`, or by nobody."""
        of_all = self.revivals.setdefault((GROUP, BODY), [])
        of_all.append(Revival((0, len(of_all)), popped, stored, times))
        if at:
            self.read_retry(at)

    def read_retry(self, at: float) -> None:
        """The newest one that was revived is received, maybe again."""
        self._deliver(at, Fate.DONE, OF_RETRY_V1, self.revivals[GROUP, BODY][-1].place)

    def _deliver(self, at: float, fate: Fate, kind: int, place: tuple[int, int]) -> Delivery:
        handle = Receipt(place[1], int(at * 1000), 5_000, 0, kind, "broker-a", *place).encode()
        made = Delivery(GROUP, BODY, 1, "client", at - 0.1, at, -1, 0, HOLD_S, fate, handle=handle)
        if fate is Fate.DONE:
            made.acking, made.settled = at + 0.05, at + 0.1
        self.deliveries.append(made)
        return made

    @property
    def without_cause(self) -> int:
        return sum("without a cause" in complaint for complaint in self.complaints())


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.mark.parametrize(
    ("popped", "stored", "times", "explained"),
    [
        (99.0, 112.0, 0, True),
        (DIED - UNWRITTEN_S - HOLD_S + 0.1, 112.0, 1, True),
        (NEXT + CLEARED_S - 0.1, 112.0, 0, True),
        (DIED - UNWRITTEN_S - HOLD_S - 0.1, 112.0, 0, False),
        (NEXT + CLEARED_S + 0.1, 112.0, 0, False),
        (99.0, DIED - 0.1, 0, False),
        (99.0, 112.0, 2, False),
    ],
    ids=["", "at the earliest", "at the latest", "early", "late", "by the one that died", "of another pop"],
)
def test_what_it_revives_of_a_pop_near_the_death_of_the_last_one_has_a_cause(
    books: Books, popped: float, stored: float, times: int, explained: bool
) -> None:
    """Nobody got the answer of that pop; what was in it is read anew, and revived."""
    books.read(FAR)
    books.revive(popped, stored, times, at=FAR + 1.0)
    assert books.without_cause == (not explained)
    assert books.causes() == Counter({NEXT_MASTER: 1} if explained else {})
    books.revive(NEXT + CLEARED_S + 1.0, 130.0, at=131.0)
    assert books.without_cause == 2 - explained


@pytest.mark.parametrize(
    ("stored", "times", "explained"),
    [
        (NEXT + UNHEARD_S - 0.1, 1, True),
        (NEXT + UNHEARD_S + 0.1, 1, False),
        (DIED - 0.1, 1, False),
        (NEXT + UNHEARD_S - 0.1, 2, False),
    ],
)
def test_a_pop_that_it_revives_once_more_is_a_cause(
    books: Books, stored: float, times: int, explained: bool
) -> None:
    """However long ago it was: that the last one had revived it the next one has not heard."""
    books.read(40.0, Fate.LEFT)
    books.revive(40.0, 60.0, times, at=61.0)
    assert books.causes() == Counter({Fate.LEFT.value: 1})
    books.revive(40.0, stored, times, at=120.0)
    assert books.without_cause == (not explained)
    assert books.causes()[NEXT_MASTER] == explained


@pytest.mark.parametrize("fate", [Fate.LEFT, Fate.CUT, Fate.DONE])
def test_a_pop_that_was_not_finished_is_revived_whatever_the_count_is(books: Books, fate: Fate) -> None:
    books.read(99.0)
    books.read(FAR, fate)
    books.read(FAR + 1.0)
    assert books.without_cause == 0
    books.revive(FAR, 130.0, 1, at=131.0)
    assert books.without_cause == (fate is Fate.DONE)
    books.revive(FAR, 131.0, 1, at=132.0)
    assert books.without_cause == 1 + (fate is Fate.DONE)


@pytest.mark.parametrize("times", [0, 1])
@pytest.mark.parametrize("seen", [False, True])
def test_one_that_nobody_got_was_given_back_once_more(books: Books, times: int, seen: bool) -> None:
    """Long after the death: retries wait until somebody has time for them."""
    books.read(FAR)
    popped = 99.0
    books.revive(popped, 105.0, times, at=FAR + 1.0 if seen else 0.0)
    # Of what was revived before, the first pop stays written down.
    books.revive(130.0 if times == 0 else popped, 133.0, times, at=135.0)
    assert books.without_cause == seen
    assert books.causes() == Counter({NEXT_MASTER: 1})


@pytest.mark.parametrize(
    ("popped", "explained"),
    [
        (99.0, True),
        (DIED - UNWRITTEN_S - 0.1, False),
        (NEXT + CLEARED_S - 0.1, True),
        (NEXT + CLEARED_S + 0.1, False),
    ],
)
def test_what_was_popped_near_the_death_of_the_last_one_is_read_twice_anew(
    books: Books, popped: float, explained: bool
) -> None:
    books.revive(popped, 112.0, at=FAR)
    for count in (1, 2):
        books.read(FAR + count)
        assert books.without_cause == count * (not explained)
    books.read(FAR + 3.0)
    assert books.without_cause == 3 - 2 * explained


@pytest.mark.parametrize(
    ("first", "explained"), [(DIED - UNWRITTEN_S + 0.1, True), (DIED - UNWRITTEN_S - 0.1, False)]
)
def test_retries_are_read_anew_too(books: Books, first: float, explained: bool) -> None:
    """Whichever pop they come from, and however often that was."""
    books.read(30.0, Fate.LEFT)
    books.revive(30.0, 40.0, 1, at=first)
    books.read_retry(FAR)
    assert books.causes()[Fate.LEFT.value] == 1
    assert books.without_cause == (not explained)
    books.read_retry(FAR + 1.0)
    assert books.without_cause == 2 * (not explained)
    books.read_retry(FAR + 2.0)
    assert books.without_cause == 3 - 2 * explained


def test_what_is_read_anew_much_later_has_no_cause(books: Books) -> None:
    books.revive(99.0, 112.0, at=FAR)
    books.read(NEXT + CLEARED_S + READ_WITHIN_S + 0.2)
    assert books.without_cause == 1


@pytest.mark.parametrize("ordered", [False, True])
def test_ordered_groups_are_not_read_twice_anew(books: Books, ordered: bool) -> None:
    """Their positions are written down with each acknowledgement."""
    books.ordered |= {GROUP} if ordered else set()
    for at in (99.0, 120.0, 121.0):
        books.read(at)
    assert books.causes() == Counter({MASTER_LOST: 1} | ({} if ordered else {NEXT_MASTER: 1}))
    assert books.without_cause == ordered


def test_all_pops_of_what_came_again_without_a_cause_are_looked_up(books: Books) -> None:
    again = [books.read(FAR), books.read(FAR + 1.0)]
    assert books.mates() == {(GROUP, BODY): again}


def test_where_no_master_died_nobody_looks_for_pops(books: Books) -> None:
    books.faults.clear()
    books.read(FAR)
    books.revive(99.0, 112.0, at=FAR + 1.0)
    assert books.without_cause == 1
    assert books.mates() == {}
