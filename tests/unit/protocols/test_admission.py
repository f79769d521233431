"""protocols.admission: what connections are counted by."""

from __future__ import annotations

import pytest

from protocols.admission import Admission, place_of
from protocols.observers import NullConnections


@pytest.mark.parametrize(
    ("peername", "place"),
    [
        (("10.1.2.3", 4), "10.1.2.3"),
        (("::ffff:10.1.2.3", 4, 0, 0), "10.1.2.3"),
        (("2001:db8:1:2:3:4:5:6", 4, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2::9", 4, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 4, 0, 2), "fe80::/64"),
        ("", ""),
        (b"", ""),
        (None, ""),
        ((), ""),
    ],
)
def test_an_address_or_a_network_is_counted(peername: object, place: str) -> None:
    assert place_of(peername) == place


def test_nothing_is_kept_of_those_that_left() -> None:
    admission = Admission("door", 3, 2, NullConnections(), lambda: 0.0)
    one = [admission.enter(("10.0.0.1", n)) for n in range(3)]
    assert one == ["10.0.0.1", "10.0.0.1", None]
    assert admission.enter("unix") == ""
    assert admission.enter(("10.0.0.2", 1)) is None, "so many in all"
    for place in ("10.0.0.1", "10.0.0.1", ""):
        admission.leave(place)
    assert (admission.count, admission._places) == (0, {})


def test_without_a_limit_of_an_address_none_is_kept() -> None:
    admission = Admission("door", 100, 0, NullConnections(), lambda: 0.0)
    assert [admission.enter(("10.0.0.1", n)) for n in range(50)] == [""] * 50
    assert not admission._places
