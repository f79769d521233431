"""Look-ups find what was stored, newest first, whether the index has single entries of it or blocks."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.log.index_blocks import encode_block, places_in
from brokers.embedded.port import lookup
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.keys import text_hash
from brokers.embedded.storage.store import Durability
from popgate.context import Context
from popgate.messages.packed_messages import PackedMessages
from popgate.model import TopicConfig
from popgate.testing import MovableClock
from popgate.wire.messages.properties import encode_properties

CONTEXT = Context(client_id="model")
KEYS = ("a", "b", "ü", "rare")
FOREVER_MS = 1 << 50

texts = st.binary(max_size=2)


@given(st.lists(st.tuples(texts, st.lists(texts.filter(len), max_size=3)), min_size=1, max_size=40), texts)
def test_a_block_tells_which_messages_may_have_a_text(said: list, wanted: bytes) -> None:
    ids, keys = [name for name, _ in said], [several for _, several in said]
    block = encode_block(ids, keys)
    for text in {wanted, *ids, *(key for several in keys for key in several)}:
        having = [at for at, several in enumerate(keys) if crc32(text) in map(crc32, several)]
        assert places_in(block, text_hash(b"k", text)) == having
        if text:
            named = [at for at, name in enumerate(ids) if name and crc32(name) == crc32(text)]
            assert places_in(block, text_hash(b"i", text)) == named


def test_a_checksum_across_two_others_is_no_hit() -> None:
    texts = [b"%d" % n for n in range(1_000)]
    block = encode_block(texts, [()] * len(texts))
    sums = b"".join(crc32(text).to_bytes(4, "big") for text in texts)
    across = int.from_bytes(sums[2:6], "big")
    assert block.count(sums[2:6]) == 1
    assert places_in(block, across << 8 | ord("i")) == []


several_keys = st.lists(st.sampled_from(KEYS[:3]), max_size=3)
batches = st.one_of(
    st.lists(several_keys, min_size=1, max_size=3),
    st.lists(several_keys, min_size=16, max_size=24),
    st.lists(st.sampled_from([["a"], ["b"]]), min_size=16, max_size=24),
)
plans = st.lists(
    st.tuples(st.integers(0, 2), batches, st.sampled_from([0, 1, 900, 1_800_000, 3_600_000])), max_size=8
)
"""The queue, the keys of each message, and the ms until the next batch."""


class Shelf:
    """A broker, and what it stored, by store time, offset and queue."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = MovableClock()
        kept = EmbeddedSettings(durability=Durability.NONE, dedup_window_ms=0)
        self.broker = EmbeddedBroker(folder / "store", clock=self.clock, settings=kept)
        self.serials = count()
        self.loop.run_until_complete(self.broker.start())

    def close(self) -> None:
        self.loop.run_until_complete(self.broker.stop())
        self.loop.close()

    async def store(self, topic: str, plan: list) -> list[tuple[tuple[int, int, int], str, Sequence[str]]]:
        await self.broker.create_topic(TopicConfig(topic, read_queues=3, write_queues=3))
        stored = []
        for queue_id, batch, gap_ms in plan:
            ids = [f"{next(self.serials)}-id" for _ in batch]
            sent = await self.broker.send_packed(
                CONTEXT,
                PackedMessages(
                    topic,
                    [name.encode() for name in ids],
                    [name.encode() for name in ids],
                    [
                        encode_properties({"UNIQ_KEY": name, "KEYS": " ".join(keys)})
                        for name, keys in zip(ids, batch, strict=True)
                    ],
                    [0] * len(batch),
                    origins=[(5, "10.0.0.1:1")] * len(batch),
                    keys=[tuple(key.encode() for key in keys) for keys in batch],
                    broker=self.broker.name,
                    queue_id=queue_id,
                ),
            )
            now_ms = self.clock.now_ms()
            stored += [
                ((now_ms, result.offset, -queue_id), name, keys)
                for result, name, keys in zip(sent, ids, batch, strict=True)
            ]
            self.clock.advance(gap_ms / 1000)
        return sorted(stored, reverse=True)


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        made = Shelf(Path(folder))
        yield made
        made.close()


@pytest.mark.parametrize("page", [2, 256])
def test_everything_is_found_and_nothing_else(
    shelf: Shelf, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`page`: how much is looked at in a row."""
    monkeypatch.setattr(lookup, "_PAGE", page)
    monkeypatch.setattr(lookup, "_BLOCKS", page)
    monkeypatch.setattr(lookup, "perf_counter", lambda: 0.0)
    serials = count()

    async def found(topic: str, key: str, begin_ms: int, end_ms: int, limit: int) -> list[str]:
        messages = await shelf.broker.find_by_key(
            CONTEXT, topic, key, begin_ms=begin_ms, end_ms=end_ms, limit=limit
        )
        return [message.body.decode() for message in messages]

    async def play(plan: list) -> None:
        topic = f"T{next(serials)}"
        stored = await shelf.store(topic, plan)
        for _, name, _ in stored:
            (message,) = await shelf.broker.find_by_id(CONTEXT, topic, name)
            assert message.body == name.encode()
        assert await shelf.broker.find_by_id(CONTEXT, topic, "another-id") == []
        times = sorted({age[0] for age, *_ in stored})
        ranges = [(0, FOREVER_MS), *((at, at) for at in times), *pairwise(times)]
        for key in KEYS:
            for begin_ms, end_ms in ranges:
                wanted = [name for age, name, keys in stored if key in keys and begin_ms <= age[0] <= end_ms]
                for limit in (1, 3, 1_000):
                    assert await found(topic, key, begin_ms, end_ms, limit) == wanted[:limit]

    @settings(max_examples=25, deadline=None)
    @given(plans)
    def agree(plan: list) -> None:
        shelf.loop.run_until_complete(play(plan))

    agree()
