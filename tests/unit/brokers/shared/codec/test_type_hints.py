"""brokers.shared.codec.type_hints: kinds out of type hints; every part of the domain travels exactly."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokers.capabilities import Redriven
from brokers.shared.codec.calls import decode, encode
from brokers.shared.codec.type_hints import hints_in_source, hints_of, kind_of
from brokers.traits import OrderScope, Traits
from popgate import lite, model
from popgate.errors import IllegalFilter
from popgate.filters.compiled import compile_filter
from popgate.model import ExponentialRetry, Filter, FilterKind, GroupConfig, TopicConfig

DOMAIN = [
    found
    for module in (model, lite)
    for _, found in sorted(vars(module).items())
    if inspect.isclass(found) and dataclasses.is_dataclass(found) and found.__module__ == module.__name__
]
FILTERS = st.sampled_from(["*", "a || b"]).map(lambda tags: compile_filter(FilterKind.TAG, tags))
"""Made for each example: equal filters are one object for as long as the compiled ones are kept."""
PECULIAR = {"wait_until": st.none(), "filter": FILTERS}


@pytest.mark.parametrize("kind", [*DOMAIN, Traits, Redriven], ids=lambda kind: kind.__name__)
@settings(deadline=None)
@given(data=st.data())
def test_every_dataclass_of_the_domain_is_read_as_it_was(kind: type, data: Any) -> None:
    overrides = {name: made for name, made in PECULIAR.items() if name in kind.__annotations__}
    value = data.draw(st.builds(kind, **overrides))
    read = decode(kind_of(kind), encode(kind_of(kind), value))
    assert read == value
    assert type(read) is kind


def test_policies_of_retries_keep_their_class() -> None:
    config = GroupConfig("g", retry=ExponentialRetry(1, 2, 3.0), attributes={"a": "b"})
    assert decode(kind_of(GroupConfig), encode(kind_of(GroupConfig), config)) == config


def test_no_retention_is_not_the_same_as_none_of_it() -> None:
    for retention in (None, 0, 5):
        config = TopicConfig("t", retention_ms=retention)
        assert decode(kind_of(TopicConfig), encode(kind_of(TopicConfig), config)).retention_ms == retention


def test_a_filter_travels_as_its_expression_and_is_checked_where_it_arrives() -> None:
    kind = kind_of(Filter)
    found = decode(kind, encode(kind, compile_filter(FilterKind.SQL92, "a > 5")))
    assert (found.kind, found.expression) == (FilterKind.SQL92, "a > 5")

    class Forged:
        kind = FilterKind.SQL92
        expression = "a >"

    with pytest.raises(IllegalFilter):
        decode(kind, encode(kind, Forged()))


def test_fields_and_members_are_part_of_what_is_told() -> None:
    assert "order_scope:OrderScope(MESSAGE_GROUP,QUEUE)" in kind_of(Traits).told
    assert [scope.name for scope in OrderScope] == ["MESSAGE_GROUP", "QUEUE"]


class Hollow:
    """Nothing that the domain has."""


@dataclasses.dataclass
class Empty:
    pass


@pytest.mark.parametrize("hint", [Hollow, Any, Empty, frozenset[str]])
def test_what_has_no_way_to_travel_is_found_when_it_is_derived(hint: Any) -> None:
    with pytest.raises(TypeError):
        kind_of(hint)


@pytest.mark.parametrize("kind", [*DOMAIN, Traits, Redriven], ids=lambda kind: kind.__name__)
def test_the_source_has_the_hints_of_a_dataclass(kind: type) -> None:
    assert hints_in_source(kind) == get_type_hints(kind)


def test_a_compiled_dataclass_has_the_hints_of_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """mypyc leaves `dict` of `dict[str, str]` in a class."""
    wanted = get_type_hints(model.Message)
    erased = {name: getattr(hint, "__origin__", hint) for name, hint in wanted.items()}
    monkeypatch.setattr(model.Message, "__annotations__", erased)
    assert hints_of(model.Message) == erased != wanted
    monkeypatch.setattr(model, "__file__", f"{str(model.__file__).removesuffix('py')}cpython-311.so")
    assert hints_of(model.Message) == wanted
