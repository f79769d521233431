"""popgate.spark.write.message_ids: which rows have one id, and which never do."""

from __future__ import annotations

import pytest

from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.options.sink_options import SinkOptions, read_sink_options
from popgate.spark.write.message_ids import BATCH_ID, QUERY_ID, Identity, batch_of, identity_of

STREAM = {QUERY_ID: "q", BATCH_ID: "7"}


def options(**given: str) -> SinkOptions:
    return read_sink_options({"endpoints": "a:1", "topic": "t", **given})


def stream(batch: str = "7", query: str = "q", partition: int = 0, run: str = "r", **given: str) -> Identity:
    told = {QUERY_ID: query, BATCH_ID: batch}
    return identity_of(told, options(**given), run=run, partition=partition, streaming=True)


def row(identity: Identity, number: int = 3, block: bytes = b"TAGS\x01a\x02", body: bytes = b"one") -> str:
    return identity.of_rows()(number, block, body)


def test_a_row_that_is_sent_again_has_its_id_again() -> None:
    assert row(stream()) == row(stream(run="another"))
    assert len(row(stream())) == 34
    assert set(row(stream())) <= set("0123456789ABCDEF")


def test_no_other_row_has_it() -> None:
    told = [
        row(stream()),
        row(stream(batch="8")),
        row(stream(query="q2")),
        row(stream(partition=1)),
        row(stream(sinkId="s")),
        row(stream(), number=4),
        row(stream(), block=b"TAGS\x01b\x02"),
        row(stream(), body=b"two"),
        # What a row says does not run from one part into the next.
        row(stream(), block=b"TAGS\x01a\x02o", body=b"ne"),
        row(stream(batch="1", query="q17")),
        row(stream(batch="71", query="q1")),
    ]
    assert len(set(told)) == len(told)


def test_rows_in_another_order_are_other_rows() -> None:
    # After a shuffle: what stands in the place of a row that was sent must not be taken for it.
    one = stream().of_rows()
    assert {one(0, b"", b"a"), one(1, b"", b"b")}.isdisjoint({one(0, b"", b"b"), one(1, b"", b"a")})


@pytest.mark.parametrize("told", [{}, {QUERY_ID: "q"}, {BATCH_ID: "7"}])
def test_a_batch_of_a_stream_that_cannot_be_known_again_is_refused(told: dict[str, str]) -> None:
    with pytest.raises(SparkSourceError, match="does not tell the task which batch") as refused:
        identity_of(told, options(), run="r", partition=0, streaming=True)
    assert refused.value.code is Code.UNSUPPORTED
    keyed = options(dedupeKeyColumn="k")
    assert identity_of(told, keyed, run="r", partition=0, streaming=True).of_keys()(b"k")


def test_a_key_is_one_row_wherever_it_comes() -> None:
    assert stream().of_keys()(b"k") == stream(batch="8", query="q2", partition=5).of_keys()(b"k")
    assert stream().of_keys()(b"k") != stream().of_keys()(b"l")
    assert stream().of_keys()(b"k") != stream(sinkId="s").of_keys()(b"k")


def test_with_a_ledger_a_key_is_one_row_of_its_batch() -> None:
    def keyed(key: bytes = b"k", **more: str) -> str:
        given = {"sinkId": "s", "ledgerTopic": "l", "deliveryGuarantee": "effectively-once", **more}
        told = {name: given.pop(name) for name in ("batch", "query") if name in given}
        return stream(**told, **given).of_keys()(key)

    assert keyed() == keyed()
    others = [
        keyed(batch="8"),
        keyed(query="q2"),
        keyed(sinkId="s2"),
        keyed(b"l"),
        stream(sinkId="s").of_keys()(b"k"),
    ]
    assert len({keyed(), *others}) == 6
    one = stream(partition=5, sinkId="s", ledgerTopic="l", deliveryGuarantee="effectively-once")
    assert one.of_keys()(b"k") == keyed()


def test_a_batch_is_known_by_its_run_alone() -> None:
    def batch(run: str, told: dict[str, str], **given: str) -> Identity:
        return identity_of(told, options(**given), run=run, partition=0, streaming=False)

    assert row(batch("r", {})) == row(batch("r", {}))
    assert row(batch("r", {})) != row(batch("other", {}))
    # Two writes of one foreachBatch are two, unless sinkId says which is which.
    assert row(batch("r", STREAM)) != row(batch("other", STREAM))
    assert row(batch("r", STREAM, sinkId="s")) == row(batch("other", STREAM, sinkId="s"))
    assert row(batch("r", STREAM, sinkId="s")) != row(batch("r", STREAM, sinkId="s2"))
    assert row(batch("r", STREAM, sinkId="s")) != row(stream(sinkId="s"))


def test_a_version_is_known_wherever_it_is_written() -> None:
    def version(number: str, told: dict[str, str], app: str = "s", run: str = "r") -> Identity:
        given = {"txnAppId": app, "txnVersion": number, "ledgerTopic": "l"}
        numbered = options(deliveryGuarantee="effectively-once", **given)
        assert batch_of(told, numbered) == ("txnVersion", int(number))
        return identity_of(told, numbered, run=run, partition=0, streaming=False)

    one = version("5", {})
    assert version("5", STREAM, run="other") == one
    assert one.by_contents
    tags = [one.tag, version("6", {}).tag, version("5", {}, app="s2").tag]
    tags.append(stream(sinkId="s", ledgerTopic="l", deliveryGuarantee="effectively-once", batch="5").tag)
    assert len(set(tags)) == 4


def test_a_batch_outside_of_streams_has_no_use_for_a_sink_id_but_for_keys() -> None:
    with pytest.raises(SparkSourceError, match="belongs to no stream") as refused:
        identity_of({}, options(sinkId="s"), run="r", partition=0, streaming=False)
    assert refused.value.code is Code.ILLEGAL_OPTION
    keyed = options(sinkId="s", dedupeKeyColumn="k")
    assert identity_of({}, keyed, run="r", partition=0, streaming=False).sink_id == "s"
