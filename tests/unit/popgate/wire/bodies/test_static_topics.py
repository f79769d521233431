"""Rules: protocol facts 6.5; the text is what RocketMQ 5.5.0 itself wrote."""

import pytest

from popgate.errors import PeerWireError
from popgate.wire.bodies.static_topics import QueueMapping, QueuePiece, leaders
from popgate.wire.json_syntax.fastjson import loads

RAW = (
    b'{"bname":"broker-a","currIdMap":{1:5},"dirty":false,"epoch":100,"hostedQueues":{1:[{"bname":"broker-a",'
    b'"endOffset":10,"gen":0,"logicOffset":0,"queueId":5,"startOffset":0,"timeOfEnd":2,"timeOfStart":1}]},'
    b'"scope":"__global__","topic":"T","totalQueues":4}'
)
PIECE = QueuePiece(0, 5, "broker-a", 0, 0, 10, 1, 2)


def test_what_a_broker_tells_of_a_static_topic_is_read() -> None:
    mapping = QueueMapping.read(loads(RAW))
    assert mapping == QueueMapping("T", "__global__", 4, "broker-a", 100, False, {1: 5}, {1: (PIECE,)})
    assert QueueMapping.read(mapping.table()) == mapping


def test_offsets_of_a_piece() -> None:
    piece = QueuePiece(1, 3, "b", logic_offset=1000, start_offset=20)
    assert (piece.logic(20), piece.logic(25)) == (1000, 1005)
    assert (piece.physical(1000), piece.physical(1005)) == (20, 25)
    assert piece.placed
    assert not QueuePiece(1, 3, "b", logic_offset=-1).placed


def test_ends_that_are_not_told_are_open() -> None:
    assert QueuePiece.read({"bname": "b", "queueId": 3, "gen": 1, "logicOffset": 7}) == QueuePiece(
        1, 3, "b", 7
    )


def test_the_highest_epoch_leads_a_queue() -> None:
    old = QueueMapping("T", "__global__", 3, "a", 100, False, {0: 0, 1: 1, 2: 2})
    new = QueueMapping("T", "__global__", 3, "b", 200, False, {1: 0})
    for mappings in ([old, new], [new, old]):
        assert {logic: mapping.broker for logic, mapping in leaders(mappings).items()} == {
            0: "a",
            1: "b",
            2: "a",
        }
    assert leaders([]) == {}


def test_queue_ids_out_of_range_lead_nothing() -> None:
    assert leaders([QueueMapping("T", "__global__", 3, "a", 1, False, {-1: 0, 1 << 40: 0})]) == {}


@pytest.mark.parametrize("part", [{"hostedQueues": {"x": []}}, {"hostedQueues": {"1": [1]}}, {"epoch": "x"}])
def test_damage_is_told(part: dict[str, object]) -> None:
    with pytest.raises(PeerWireError):
        QueueMapping.read(part)
