"""What a classic client signs proves itself at the door, and what was changed on the way does not."""

from hypothesis import assume, given
from hypothesis import strategies as st

from popgate.wire.frames.headers import Serialization
from popgate.wire.frames.remoting import Command, RemotingWire, encode_command
from popgate.wire.frames.signature import SIGNATURE, UNIQUE_KEY_QUERY, V4_9_3, sign, verify
from protocols.remoting.door import credentials_in

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = TEXT | st.sampled_from(["topic", "queueId", "a", "AccessKey", "SecurityToken", "Signature"])
FIELDS = st.dictionaries(NAMES, TEXT, max_size=6)
BODY = st.binary(max_size=40)
KEY = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
VERSION = st.integers(V4_9_3 - 2, V4_9_3 + 2)


def arrived(fields: dict[str, str], body: bytes, version: int, way: Serialization) -> Command:
    """A request, as it comes out of the wire."""
    wire = RemotingWire()
    wire.receive(encode_command(Command(10, 1, 0, fields, body, version=version, serialization=way)))
    command = wire.next_event()
    assert command is not None
    return command


@given(FIELDS, BODY, KEY, KEY, TEXT, VERSION, st.sampled_from(Serialization), st.booleans())
def test_what_a_client_signed_is_proved(
    fields: dict[str, str],
    body: bytes,
    access_key: str,
    secret: str,
    token: str,
    version: int,
    way: Serialization,
    queries: bool,
) -> None:
    query = {UNIQUE_KEY_QUERY: "true"} if queries else {}
    # Older clients leave that field out of what they sign.
    signed = sign(fields if version <= V4_9_3 else fields | query, body, access_key, secret, token)

    command = arrived(fields | query | signed, body, version, way)
    found = credentials_in(command)

    assert found.access_key == access_key
    assert found.token == (token or fields.get("SecurityToken", ""))
    assert found.proves(secret)
    assert not found.proves(secret + "x")
    assert verify(command.fields, command.body, secret, version)


@given(FIELDS, BODY, KEY, KEY, st.data())
def test_what_was_changed_on_the_way_is_not(
    fields: dict[str, str], body: bytes, access_key: str, secret: str, data: st.DataObject
) -> None:
    sent = fields | sign(fields, body, access_key, secret)
    name = data.draw(st.sampled_from(sorted(sent.keys() - {SIGNATURE})))
    value, other = data.draw(KEY), data.draw(BODY)
    assume(value != sent[name])

    assert not credentials_in(Command(10, fields=sent | {name: value}, body=body)).proves(secret)
    assert credentials_in(Command(10, fields=sent, body=other)).proves(secret) is (other == body)
