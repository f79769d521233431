import pytest

from popgate.errors import PeerWireError
from popgate.wire.json_syntax import parts


def test_what_is_missing_or_null_is_its_default() -> None:
    for part in ({}, {"x": None}):
        assert parts.text(part, "x") == ""
        assert parts.text(part, "x", "d") == "d"
        assert parts.number(part, "x", 7) == 7
        assert parts.real(part, "x") == 0.0
        assert parts.truth(part, "x", True) is True
        assert parts.items(part, "x") == []
        assert parts.table(part, "x") == {}
        assert parts.texts(part, "x") == ()
        assert parts.text_table(part, "x") == {}
        assert parts.each(part, "x", dict) == ()
        assert parts.each_of(part, "x", dict) == {}


def test_numbers_and_truth_may_be_told_as_text() -> None:
    assert parts.number({"x": "-12"}, "x") == -12
    assert parts.truth({"x": "True"}, "x") is True
    assert parts.truth({"x": "false"}, "x", True) is False


@pytest.mark.parametrize("value", [1.0, True, [], {}, "x", "", "1.5", "٣", 1 << 63, "9" * 30, -(1 << 63) - 1])
def test_what_is_no_number_of_java_is_refused(value: object) -> None:
    with pytest.raises(PeerWireError, match="x"):
        parts.number({"x": value}, "x")


def test_numbers_may_be_bounded() -> None:
    assert parts.number({"x": 5}, "x", least=5, most=5) == 5
    for value in (4, 6):
        with pytest.raises(PeerWireError, match="not 5 to 5"):
            parts.number({"x": value}, "x", least=5, most=5)


@pytest.mark.parametrize("value", ["1", True, [], 10**400])
def test_what_is_no_real_number_is_refused(value: object) -> None:
    assert parts.real({"x": 2}, "x") == 2.0
    with pytest.raises(PeerWireError):
        parts.real({"x": value}, "x")


@pytest.mark.parametrize("value", [1, 0, "yes", [], {}])
def test_what_is_not_true_or_false_is_refused(value: object) -> None:
    with pytest.raises(PeerWireError):
        parts.truth({"x": value}, "x")


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (parts.text, 1),
        (parts.table, []),
        (parts.items, {}),
        (parts.items, "x"),
        (parts.texts, [1]),
        (parts.texts, ["x", None]),
        (parts.text_table, {"a": 1}),
        (parts.text_table, {("a",): "b"}),
    ],
)
def test_a_part_of_the_wrong_kind_is_refused(read: object, value: object) -> None:
    with pytest.raises(PeerWireError, match="x of a JSON body is not"):
        read({"x": value}, "x")  # type: ignore[operator]


@pytest.mark.parametrize("value", [[1], [None], [[]]])
def test_a_list_of_something_else_than_objects_is_refused(value: object) -> None:
    with pytest.raises(PeerWireError):
        parts.each({"x": value}, "x", dict)


@pytest.mark.parametrize("value", [{"a": 1}, {("a", 1): {}}])
def test_an_object_of_something_else_than_objects_is_refused(value: object) -> None:
    with pytest.raises(PeerWireError):
        parts.each_of({"x": value}, "x", dict)


def test_nulls_of_a_table_of_text_are_left_out() -> None:
    assert parts.text_table({"x": {"a": "b", "c": None}}, "x") == {"a": "b"}


@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b'"x"', b"", b"{"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(PeerWireError):
        parts.load_object(body, "something")
