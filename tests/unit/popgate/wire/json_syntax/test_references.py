import pytest

from popgate.errors import PeerWireError
from popgate.wire.json_syntax.fastjson import loads
from popgate.wire.json_syntax.references import MOST_DEPTH, MOST_UNFOLDED, resolve_references


def ref(path: str) -> dict[str, str]:
    return {"$ref": path}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("$.a", {"b": [{"c": 1}, "x"]}),
        ("$.a.b", [{"c": 1}, "x"]),
        ("$.a.b[0]", {"c": 1}),
        ("$.a.b[1]", "x"),
        ("$['a']['b'][0]", {"c": 1}),
        ('$["a"].b[0].c', 1),
        ("$.e.f", {"odd": True}),
        ("$['e.f']", {"odd": True}),
    ],
)
def test_a_path_leads_to_a_part(path: str, found: object) -> None:
    value = {"a": {"b": [{"c": 1}, "x"]}, "e": {"f": {"odd": True}}, "e.f": {"odd": True}, "z": ref(path)}
    assert resolve_references(value)["z"] == found


def test_what_is_referred_to_is_shared() -> None:
    value = resolve_references({"a": {"x": 1}, "b": [ref("$.a"), ref("$.a")]})
    assert value["b"][0] is value["b"][1] is value["a"]


def test_a_reference_may_come_before_what_it_means_and_lead_to_another_one() -> None:
    value = resolve_references({"a": ref("$.b"), "b": ref("$.c"), "c": [1], "d": [ref("$.a")]})
    assert value == {"a": [1], "b": [1], "c": [1], "d": [[1]]}


def test_a_part_that_is_referred_to_may_have_references_itself() -> None:
    value = resolve_references({"x": [1], "y": {"x": ref("$.x")}, "z": [ref("$.y"), ref("$.y")]})
    assert value["z"] == [{"x": [1]}, {"x": [1]}]


@pytest.mark.parametrize("other", [{"$ref": 1}, {"$ref": "$.a", "more": 1}, {"ref": "$.a"}])
def test_what_only_looks_like_a_reference_stays(other: object) -> None:
    assert resolve_references({"a": 1, "b": other}) == {"a": 1, "b": other}


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a",
        "$.b",
        "$.a.b",
        "$.a[0]",
        "$[0]",
        "$.list[9]",
        "$.list[-1]",
        "$.list.x",
        "$a",
        "$.",
        "$..a",
        "@",
    ],
)
def test_a_path_to_nothing_is_refused(path: str) -> None:
    with pytest.raises(PeerWireError, match="where nothing is"):
        resolve_references({"a": 1, "list": [1], "z": ref(path)})


@pytest.mark.parametrize(
    "value",
    [
        {"a": ref("$")},
        {"a": [ref("$.a")]},
        {"a": {"b": ref("$.c")}, "c": {"d": ref("$.a")}},
        {"a": ref("$.b"), "b": ref("$.a")},
        {"a": ref("$.a")},
        ref("$"),
        {"a": ref("..")},
    ],
)
def test_nothing_holds_itself(value: object) -> None:
    with pytest.raises(PeerWireError):
        resolve_references(value)


def test_what_references_unfold_to_is_bounded() -> None:
    levels = ",".join(f'"a{n}":[{",".join([f"""{{"$ref":"$.a{n - 1}"}}"""] * 10)}]' for n in range(1, 9))
    with pytest.raises(PeerWireError, match=f"unfold to more than {MOST_UNFOLDED}"):
        loads(f'{{"a0":[1],{levels}}}'.encode())


def test_the_depth_that_references_unfold_to_is_bounded() -> None:
    def chain(length: int) -> dict[str, object]:
        return {"a0": [1]} | {f"a{n}": [ref(f"$.a{n - 1}")] for n in range(1, length)}

    assert resolve_references(chain(MOST_DEPTH - 1))["a1"] == [[1]]
    for length in (MOST_DEPTH, MOST_DEPTH + 1, 20_000):
        with pytest.raises(PeerWireError, match="deep"):
            resolve_references(chain(length))
        with pytest.raises(PeerWireError, match="deep"):
            resolve_references(dict(reversed(chain(length).items())))
