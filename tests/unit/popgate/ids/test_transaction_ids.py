import pytest

from popgate.errors import IllegalTransactionId
from popgate.ids.transaction_ids import seal, unseal
from popgate.model import EndTransaction, Resolution

ONE, OTHER = b"one secret", b"another secret"


def ending(transaction: str, message_id: str = "") -> EndTransaction:
    return EndTransaction("T", transaction, message_id, Resolution.COMMIT)


@pytest.mark.parametrize("message_id", ["M1", "a.b.c", "", "with\nlines", "\udcff", "é" * 50])
def test_an_id_is_read_as_it_was_made(message_id: str) -> None:
    assert unseal([ONE], ending(seal(ONE, "Ab9_-", message_id))) == ("Ab9_-", message_id)


def test_either_of_two_secrets_opens_it_and_no_third() -> None:
    made = seal(OTHER, "7", "M1")
    assert unseal([ONE, OTHER], ending(made)) == ("7", "M1")
    for secrets in ([ONE], []):
        with pytest.raises(IllegalTransactionId, match="was not given out"):
            unseal(secrets, ending(made))


@pytest.mark.parametrize("text", ["", ".", "..", "a..b", "a.b.c", "é.%s.m" % ("0" * 32), "\x00\udcff"])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(IllegalTransactionId, match="was not given out"):
        unseal([ONE], ending(text))


def test_a_code_in_other_letters_is_another_code() -> None:
    place, code, message_id = seal(ONE, "7", "M1").split(".")
    with pytest.raises(IllegalTransactionId):
        unseal([ONE], ending(f"{place}.{code.upper()}.{message_id}"))
