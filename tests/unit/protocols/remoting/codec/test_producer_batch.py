"""Batches that are forwarded in one piece: the same as if their messages had been sent one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokers.batches import MOST_BYTES, MOST_MESSAGES, Single
from brokers.remote.produce.send_request import SingleLoad, complete, send_request
from popgate.errors import PeerWireError
from popgate.messages.packed_messages import PackedMessages
from popgate.model import MessageType
from popgate.wire.messages.batches import BatchItem, decode_batch, encode_batch
from popgate.wire.messages.properties import decode_properties, encode_properties
from processors.limits import Limits
from processors.produce.message_checks import check_message, finish_message
from protocols.remoting.codec.messages import Head, message_in
from protocols.remoting.codec.producer_batch import PackedBatch, pack_batch, pack_messages, plain_message

NOW_MS, BORN_MS, PEER = 1_700_000_000_000, 1_690_000_000_000, "10.1.2.3:40000"
HEAD = Head("makers", "orders", 2, 0x300, BORN_MS, 0, b"", 0, None, True, "broker-a", False)
JAVA = b"UNIQ_KEY\x01ID\x02WAIT\x01true\x02TAGS\x01paid\x02"


def pack(body: bytes, head: Head = HEAD, **limits: Any) -> PackedBatch | None:
    return pack_batch(head, body, topic="orders", born_host=PEER, now_ms=NOW_MS, limits=Limits(**limits))


def pack_to_store(body: bytes, head: Head = HEAD, **limits: Any) -> PackedMessages | None:
    return pack_messages(head, body, topic="orders", born_host=PEER, now_ms=NOW_MS, limits=Limits(**limits))


def single(block: bytes, body: bytes = b"body", head: Head = HEAD, **limits: Any) -> Single | None:
    head = replace(head, properties=block)
    return plain_message(head, body, topic="orders", born_host=PEER, now_ms=NOW_MS, limits=Limits(**limits))


def batch_of(*blocks: bytes, body: bytes = b"body") -> bytes:
    return encode_batch([BatchItem(at, body, block) for at, block in enumerate(blocks)])


def some_messages(
    names: list[str], values: list[str]
) -> st.SearchStrategy[list[tuple[int, bytes, dict[str, str], bool]]]:
    """Flags, bodies, some of these properties, and whether the last property is ended."""
    properties = st.dictionaries(st.sampled_from(names), st.sampled_from(values))
    flags = st.integers(-(1 << 31), (1 << 31) - 1)
    return st.lists(
        st.tuples(flags, st.binary(min_size=1, max_size=40), properties, st.booleans()), max_size=6
    )


class TestTheSameMessages:
    @given(
        some_messages(
            ["TAGS", "KEYS", "own", "DELAYED", "MY_WAIT", "INSTANCE_ID"],
            ["true", "1", "a b", "DELAY", "WAIT"],
        )
    )
    def test_as_if_sent_one_by_one(self, messages: list[tuple[int, bytes, dict[str, str], bool]]) -> None:
        items = []
        for flag, body, named, ended in messages:
            block = encode_properties({"UNIQ_KEY": f"ID{len(items)}", "WAIT": "true", **named})
            items.append(BatchItem(flag, body, block if ended else block.removesuffix(b"\x02")))
        packed = pack(encode_batch(items))
        if not items:
            assert packed is None
            return
        assert packed is not None
        one_by_one = []
        for item in items:
            message = message_in(HEAD, item, topic="orders", born_host=PEER, now_ms=NOW_MS, limits=Limits())
            complete(message)
            one_by_one.append((item.flag, item.body, decode_properties(message.properties)))
        stored = [
            (each.flag, each.body, decode_properties(each.properties))
            for each in decode_batch(packed.batch.data)
        ]
        assert stored == one_by_one
        assert packed.first_message_id == one_by_one[0][2]["UNIQ_KEY"]
        assert packed.batch.count == len(items)
        assert packed.batch.body_bytes == sum(len(item.body) for item in items)

    @pytest.mark.parametrize(
        "properties",
        [
            b"",
            b"WAIT\x01true\x02",
            b"WAIT\x01true",
            b"WAIT\x01true\x02UNIQ_KEY\x01BATCH\x02",  # from 5.0.0 on
            b"UNIQ_KEY\x01BATCH\x02WAIT\x01TRUE",
        ],
    )
    @pytest.mark.parametrize("block", [JAVA, JAVA.removesuffix(b"\x02"), b"TAGS\x01a\x02UNIQ_KEY\x01ID"])
    def test_of_a_java_client(self, properties: bytes, block: bytes) -> None:
        packed = pack(batch_of(block, block), replace(HEAD, properties=properties))
        assert packed is not None
        batch = packed.batch
        assert (batch.topic, batch.broker, batch.queue_id) == ("orders", "broker-a", 2)
        assert (batch.count, batch.body_bytes, batch.born_ms) == (2, 8, BORN_MS)
        assert (batch.sys_flag, batch.producer_group) == (0x300, "makers")
        for item in decode_batch(batch.data):
            assert decode_properties(item.properties) == {
                **decode_properties(block),
                "__BORNHOST": PEER,
                "BORN_TIMESTAMP": str(BORN_MS),
            }

    @given(some_messages(["TAGS", "KEYS", "own", "ÄKEY"], ["a", " a  b ", "ü"]), st.booleans())
    def test_packed_as_if_sent_one_by_one(
        self, messages: list[tuple[int, bytes, dict[str, str], bool]], once: bool
    ) -> None:
        head = replace(HEAD, once=once)
        items = []
        for flag, body, named, ended in messages:
            block = encode_properties({"TAGS": "t", "UNIQ_KEY": f"ID{len(items)}ü", **named})
            items.append(BatchItem(flag, body, block if ended else block.removesuffix(b"\x02")))
        packed = pack_to_store(encode_batch(items), head)

        if not items:
            assert packed is None
            return
        assert packed is not None
        assert packed.unpack() == [
            # Of these a broker reads the properties.
            replace(
                message_in(head, item, topic="orders", born_host=PEER, now_ms=NOW_MS, limits=Limits()), tag=""
            )
            for item in items
        ]

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(
                    [b"", b"a\x01b\x02", b"a\x01bc\x02", b"MY_", b"KEYS\x01k\x02", b"KEYS\x01\x02"]
                ),
                st.sampled_from(
                    [b"UNIQ_KEY\x01%06d\x02", b"UNIQ_KEY\x01%06d", b"UNIQ_KEY\x01%d\x02", b"", b"%06d"]
                ),
                st.sampled_from(
                    [b"", b"KEYS\x01l m\x02", b"KEYS\x01k\x01\x02", b"TAGS\x01UNIQ_KEY\x02", b"\x02"]
                ),
                st.sampled_from([b"body", b"longer body"]),
            ),
            min_size=1,
            max_size=3,
        ),
        st.integers(1, 80),
    )
    def test_many_as_if_packed_in_small_parts(
        self, kinds: list[tuple[bytes, bytes, bytes, bytes]], other: int
    ) -> None:
        """Only of many it is looked whether they are alike; `other`: so many in a row are of one kind."""
        items = []
        for at in range(100):
            front, named, behind, body = kinds[at // other % len(kinds)]
            items.append(BatchItem(0, body, front + (named % at if b"%" in named else named) + behind))
        parts = [pack_to_store(encode_batch(items[at : at + 10])) for at in range(0, len(items), 10)]

        packed = pack_to_store(encode_batch(items))

        if packed is None:
            assert None in parts
        else:
            assert packed.unpack() == [each for part in parts if part is not None for each in part.unpack()]

    def test_a_batch_has_no_more_than_a_broker_takes(self) -> None:
        large = batch_of(*[JAVA] * 4, body=bytes((1 << 20) - 60))
        assert len(large) <= MOST_BYTES
        assert pack(large) is None
        assert pack(batch_of(*[JAVA] * 3, body=bytes((1 << 20) - 60))) is not None
        small = b"UNIQ_KEY\x01I\x02"
        many = batch_of(*[small] * (MOST_MESSAGES + 1), body=b"x")
        assert len(many) * 4 < MOST_BYTES * 2
        assert pack(many, max_messages_per_send=1 << 16) is None

    def test_a_producer_that_tells_no_time_sends_now(self) -> None:
        packed = pack(batch_of(JAVA), replace(HEAD, born_ms=0))
        assert packed is not None
        assert packed.batch.born_ms == NOW_MS


class TestWhatNeedsALook:
    @pytest.mark.parametrize(
        "block",
        [
            b"",
            b"TAGS\x01paid\x02",
            b"MY_UNIQ_KEY\x01ID\x02",
            b"UNIQ_KEY\x01\x02",
            *(
                b"UNIQ_KEY\x01ID\x02%b" % more
                for more in (
                    b"WAIT\x01false\x02",
                    b"WAIT\x01false",
                    b"WAIT\x01false\x02MY_WAIT\x01true\x02",
                    b"DELAY\x013\x02",
                    b"TIMER_DELIVER_MS\x013\x02",
                    b"TIMER_DELAY_SEC\x013\x02",
                    b"TRAN_MSG\x01true\x02",
                    b"__SHARDINGKEY\x01a\x02",
                    b"_SYS_MSG_PRIORITY_\x013\x02",
                    b"__LITE_TOPIC\x01a\x02",
                    b"CORRELATION_ID\x01a\x02",
                    b"__BORNHOST\x011.2.3.4:5\x02",
                    b"BORN_TIMESTAMP\x015\x02",
                    b"a\x01%b\x02" % (b"x" * 32_000),
                )
            ),
        ],
    )
    def test_a_message(self, block: bytes) -> None:
        assert pack(batch_of(JAVA, block)) is None
        assert pack(batch_of(block, JAVA)) is None
        assert pack_to_store(batch_of(JAVA, block)) is None
        assert pack_to_store(batch_of(block, JAVA)) is None

    @pytest.mark.parametrize(
        "block",
        [
            b"UNIQ_KEY\x01ID\x02UNIQ_KEY\x01JD\x02",
            b"UNIQ_KEY\x01ID\x02KEYS\x01a\x02KEYS\x01b\x02",
            b"UNIQ_KEY\x01ID\x02MY_KEYS\x01a\x02",
            b"UNIQ_KEY\x01ID\x02KEYS\x01aKEYS\x01b\x02",
            b"UNIQ_KEY\x01ID\x02KEYS\x01aKEYS\x01b",
            b"UNIQ_KEY\x01\xff\x02",
        ],
    )
    def test_a_message_whose_id_or_keys_are_not_plain(self, block: bytes) -> None:
        assert pack_to_store(batch_of(JAVA, block)) is None

    @pytest.mark.parametrize(
        "more",
        [
            {"queue_id": -1},
            {"reconsumed": 1},
            {"properties": b"TAGS\x01a\x02"},
            {"properties": b"WAIT\x01false\x02"},
        ],
    )
    def test_a_header(self, more: dict[str, Any]) -> None:
        assert pack(batch_of(JAVA)) is not None
        assert pack(batch_of(JAVA), replace(HEAD, **more)) is None
        assert pack_to_store(batch_of(JAVA)) is not None
        assert pack_to_store(batch_of(JAVA), replace(HEAD, **more)) is None

    @pytest.mark.parametrize("more", [{"broker": ""}, {"once": True}])
    def test_a_header_of_a_batch_to_forward(self, more: dict[str, Any]) -> None:
        assert pack(batch_of(JAVA), replace(HEAD, **more)) is None

    @pytest.mark.parametrize(
        ("limits", "body"),
        [
            ({"max_body_bytes": 3}, b"body"),
            ({"max_messages_per_send": 1}, b"body"),
            ({"max_properties": 2}, b"body"),
            ({"max_properties_bytes": 20}, b"body"),
            ({"refuse_empty_bodies": True}, b""),
        ],
    )
    def test_what_a_limit_is_reached_by(self, limits: dict[str, Any], body: bytes) -> None:
        assert pack(batch_of(JAVA, JAVA, body=body), **limits) is None
        assert pack_to_store(batch_of(JAVA, JAVA, body=body), **limits) is None

    @pytest.mark.parametrize(
        "damage",
        [
            b"",
            b"\x00" * 8,
            b"\xff" * 64,
            batch_of(JAVA)[:-1],
            batch_of(JAVA) + b"\x00",
            b"\x00\x00\x00\x05" + batch_of(JAVA)[4:],
            batch_of(JAVA)[:16] + b"\x7f\xff\xff\xff" + batch_of(JAVA)[20:],
            batch_of(JAVA)[:24] + b"\xff\xff" + batch_of(JAVA)[26:],
        ],
    )
    def test_damage(self, damage: bytes) -> None:
        assert pack(damage) is None
        assert pack_to_store(damage) is None

    @given(st.binary(max_size=120), st.integers(0, 120))
    def test_whatever_comes_is_no_fault(self, noise: bytes, at: int) -> None:
        data = batch_of(JAVA, JAVA)
        for whole in (noise, data[:at] + noise + data[at + len(noise) :]):
            pack(whole)
            pack_to_store(whole)


MARKS = ["\x01", "\x02"]
NAMES = ["UNIQ_KEY", "TAGS", "WAIT", "ID", "true", "3", "a_b", "ü", "", "MY_"]
SPECIAL = ["DELAY", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TRAN_MSG", "__SHARDINGKEY", "_SYS_MSG_PRIORITY_"]
SPECIAL += ["__LITE_TOPIC", "CORRELATION_ID", "__BORNHOST", "BORN_TIMESTAMP"]
hostile_blocks = st.builds(
    lambda first, words: (first + "".join(words)).encode(),
    st.sampled_from(["", "UNIQ_KEY\x01ID\x02", "TAGS\x01a\x02UNIQ_KEY\x01ID"]),
    st.lists(st.sampled_from(MARKS * 4 + NAMES + SPECIAL), max_size=12),
)


class TestOneMessage:
    @given(
        hostile_blocks,
        st.sampled_from([b"body", b"x", b""]),
        st.sampled_from(
            [
                {},
                {"born_ms": 0, "flag": -5, "sys_flag": 0},
                {"queue_id": -1},
                {"broker": ""},
                {"once": True},
                {"reconsumed": 1},
                {"group": ""},
            ]
        ),
    )
    def test_the_request_is_the_same_as_of_a_checked_message(
        self, block: bytes, body: bytes, more: dict[str, Any]
    ) -> None:
        head = replace(HEAD, batch=False, **more)
        plain = single(block, body, head)
        if plain is None:
            return
        limits = Limits()
        item = BatchItem(head.flag, body, block)
        message = message_in(head, item, topic="orders", born_host=PEER, now_ms=NOW_MS, limits=limits)
        check_message(message, limits, now_ms=NOW_MS, max_delay_ms=1)
        finish_message(message)
        complete(message)
        assert message.type is MessageType.NORMAL
        assert (plain.topic, plain.broker, plain.message_id) == ("orders", message.broker, message.message_id)
        assert plain.born_ms == message.born_ms
        load = SingleLoad(plain)
        assert load.request(plain.queue_id, 7) == send_request([message], message.queue_id, 7)

    @pytest.mark.parametrize(
        "block",
        [JAVA, JAVA.removesuffix(b"\x02"), b"TAGS\x01a\x02UNIQ_KEY\x01ID", JAVA + b"my_own\x01WAIT\x02"],
    )
    def test_the_usual_ones_are_plain(self, block: bytes) -> None:
        plain = single(block)
        assert plain is not None
        assert (plain.broker, plain.queue_id, plain.sys_flag, plain.born_ms) == (
            "broker-a",
            2,
            0x300,
            BORN_MS,
        )

    @pytest.mark.parametrize(
        ("block", "limits"),
        [
            (b"UNIQ_KEY\x01ID\x02" * 2, {}),
            (b"UNIQ_KEY\x01ID\x02a\x01%b\x02" % (b"x" * 32_700), {"max_properties_bytes": 40_000}),
            (JAVA, {"max_properties": 2}),
            (JAVA, {"max_properties_bytes": 20}),
            (JAVA, {"max_body_bytes": 3}),
            *((JAVA + f"{name}\x013\x02".encode(), {}) for name in SPECIAL),
        ],
    )
    def test_others_are_looked_at(self, block: bytes, limits: dict[str, Any]) -> None:
        assert single(block, **limits) is None


class TestMessagesThatAreAlike:
    """What tells the lengths of one is compared for those that follow."""

    @given(
        st.lists(
            st.tuples(
                st.sampled_from([0, 0, 0, 7]),
                st.sampled_from([b"body", b"ydob", b"longer"]),
                st.sampled_from([JAVA, JAVA.replace(b"ID", b"JD"), JAVA[:-1], b"UNIQ_KEY\x01I\x02"]),
            ),
            min_size=1,
            max_size=12,
        ),
        st.integers(0, 700),
        st.sampled_from([b"", b"\x00", b"\x01", b"\x02", b"\xff", b"\x00\x00\x00\x04"]),
    )
    def test_a_batch_is_forwarded_as_it_can_be_decoded(
        self, messages: list[tuple[int, bytes, bytes]], at: int, damage: bytes
    ) -> None:
        whole = encode_batch(messages)
        packed = pack(whole)
        assert packed is not None
        self._is_forwarded(packed, whole)
        damaged = whole[:at] + damage + whole[at + len(damage) :]
        packed, stored = pack(damaged), pack_to_store(damaged)
        if packed is not None:
            self._is_forwarded(packed, damaged)
        if stored is not None:
            assert list(zip(stored.flags, stored.bodies, stored.properties, strict=True)) == decode_batch(
                damaged
            )

    def _is_forwarded(self, packed: PackedBatch, data: bytes) -> None:
        try:
            items = decode_batch(data)
        except PeerWireError as error:
            raise AssertionError("it was forwarded, and cannot be decoded") from error
        birth = f"__BORNHOST\x01{PEER}\x02BORN_TIMESTAMP\x01{BORN_MS}\x02".encode()
        assert decode_batch(packed.batch.data) == [
            BatchItem(flag, body, block + (b"" if block.endswith(b"\x02") else b"\x02") + birth)
            for flag, body, block in items
        ]
        assert packed.batch.count == len(items)
        assert packed.batch.body_bytes == sum(len(item.body) for item in items)
        assert packed.first_message_id == decode_properties(items[0].properties)["UNIQ_KEY"]
