"""The rest of what clients do over real gRPC channels, with crashes, against the same model.

Dead-letter requests, attempt ids, pulls and positions, priorities, lite topics, renewal by the gateway, and
groups that are changed come between the rules of `test_grpc_stateful`, whose model knows of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from popgate.context import Context
from popgate.lite import LITE_BIND_TOPIC
from popgate.model import GroupConfig, MessageType, TopicConfig
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from tests.property import test_grpc_stateful as plain
from tests.property.test_grpc_stateful import CLIENTS, Code, Sent, Site, clients, picks

site = plain.site
PRIORITIES = 3
RENEWED_S = 10
"""The consume timeout of the group whose messages the gateway keeps."""
LITE_NAMES = ("a", "b")
_GROUPS = (
    GroupConfig("urgent-group", max_attempts=plain.MOST_ATTEMPTS),
    GroupConfig("lite-group", attributes={LITE_BIND_TOPIC: "lite"}),
    GroupConfig("kept-group", consume_timeout_ms=RENEWED_S * 1_000, max_attempts=1_000),
    GroupConfig("readers"),
)


def make_machine(site: Site) -> type[RuleBasedStateMachine]:
    async def furnish() -> None:
        assert site.broker is not None
        for topic in (
            TopicConfig("urgent", (MessageType.PRIORITY,), read_queues=PRIORITIES, write_queues=PRIORITIES),
            TopicConfig("lite", (MessageType.LITE,), read_queues=1, write_queues=1),
            TopicConfig("kept", read_queues=1, write_queues=1),
        ):
            await site.broker.create_topic(topic)
        for group in _GROUPS:
            await site.broker.create_group(group)

    class MoreGateways(plain.make_machine(site)):  # type: ignore[misc]
        topics = ("t", "lanes", "urgent")

        def __init__(self) -> None:
            super().__init__()
            site.run(furnish())
            self.positions: dict[int, int] = {}
            """Of the group of readers, by queue of the topic "t"."""
            self.most = dict.fromkeys(self.topics, plain.MOST_ATTEMPTS)

        def note(self, message: pb.Message, answer: rpc.SendResultEntry) -> None:
            super().note(message, answer)
            self.sent[-1].most = self.most.get(message.topic.name, plain.MOST_ATTEMPTS)

        def written(self, topic: str, **system: Any) -> pb.Message:
            serial = next(self.serials)
            told = pb.SystemProperties(message_id=f"id-{serial}", **system)
            return pb.Message(
                topic=pb.Resource(name=topic), body=f"{topic}-{serial}".encode(), system_properties=told
            )

        # -- dead letters ---------------------------------------------------------------------------

        async def forward(self, client: int, sent: Sent, handle: str) -> int:
            topic = sent.request.topic.name
            request = rpc.ForwardMessageToDeadLetterQueueRequest(
                topic=sent.request.topic,
                group=pb.Resource(name=f"{topic}-group"),
                receipt_handle=handle,
                message_id=sent.answer.message_id,
                delivery_attempt=sent.attempt,
                max_delivery_attempts=sent.most,
            )
            answer = await site.call(client, "ForwardMessageToDeadLetterQueue", request)
            return int(answer.status.code)

        def die(self, sent: Sent) -> None:
            sent.dead = True
            sent.old_handles.append(sent.handle)
            sent.handle = ""

        @rule(client=clients, which=picks)
        def forward_to_the_dead_letters(self, client: int, which: int) -> None:
            held = self.held()
            if held:
                sent = held[which % len(held)]
                assert site.run(self.forward(client, sent, sent.handle)) == Code.OK
                self.die(sent)

        @rule(which=picks, turns=st.integers(0, 60))
        def crash_while_a_message_is_forwarded(self, which: int, turns: int) -> None:
            """Asked again it is done, or was: it is a dead letter once, as the end of the test sees."""
            held = self.held()
            if held:
                sent = held[which % len(held)]
                self.in_the_middle(self.forward(0, sent, sent.handle), turns)
                code = site.run(self.forward(1, sent, sent.handle))
                assert code in (Code.OK, Code.INVALID_RECEIPT_HANDLE), code
                self.die(sent)

        # -- attempt ids ----------------------------------------------------------------------------

        @rule(
            client=clients,
            batch=st.integers(1, 4),
            seconds=st.integers(1, 40),
            crashes=st.booleans(),
            which=picks,
        )
        def receive_again_under_the_same_attempt_id(
            self, client: int, batch: int, seconds: int, crashes: bool, which: int
        ) -> None:
            """As after an answer that was lost: the same comes, as often as it is asked for."""
            attempt_id = f"attempt-{which}-{next(self.serials)}"
            first = site.run(site.receive(client, "lanes", batch, seconds, attempt_id=attempt_id))
            self.take("lanes", first, seconds)
            if not first:
                return
            if crashes:
                site.run(site.crash())
            again = site.run(site.receive(client, "lanes", batch, seconds, attempt_id=attempt_id))
            assert [one.body for one in again] == [one.body for one in first]
            by_body = {sent.body: sent for sent in self.sent}
            for message in again:
                sent = by_body[message.body.decode()]
                assert message.system_properties.delivery_attempt == sent.attempt, sent
                sent.handle = message.system_properties.receipt_handle

        # -- pulls and positions --------------------------------------------------------------------

        def queue(self, number: int) -> pb.MessageQueue:
            return pb.MessageQueue(topic=pb.Resource(name="t"), id=number, broker=pb.Broker(name="popgate"))

        async def pulled(self, client: int, number: int) -> list[tuple[int, str]]:
            """Offsets and bodies of a queue, read to its end."""
            found: list[tuple[int, str]] = []
            offset, end = 0, False
            method = site.channels[client].unary_stream(
                plain.SERVICE + "PullMessage",
                request_serializer=rpc.PullMessageRequest.SerializeToString,
                response_deserializer=rpc.PullMessageResponse.FromString,
            )
            while not end:
                request = rpc.PullMessageRequest(
                    group=pb.Resource(name="readers"),
                    message_queue=self.queue(number),
                    offset=offset,
                    batch_size=3,
                )
                frames = [
                    frame async for frame in method(request, metadata=site._metadata(client), timeout=60)
                ]
                came = [frame.message for frame in frames if frame.HasField("message")]
                found += [(one.system_properties.queue_offset, one.body.decode()) for one in came]
                offset = next(frame.next_offset for frame in frames if frame.HasField("next_offset"))
                end = not came
            return found

        async def offset(self, client: int, number: int, policy: int) -> int:
            request = rpc.QueryOffsetRequest(message_queue=self.queue(number), query_offset_policy=policy)
            answer = await site.call(client, "QueryOffset", request)
            assert answer.status.code == Code.OK, answer
            return int(answer.offset)

        @rule(client=clients)
        def pull_everything(self, client: int) -> None:
            """Whoever consumed it: what lies in the topic is read by position, in order, without a gap."""
            self.held()
            bodies: Counter[str] = Counter()
            for number in range(2):
                found = site.run(self.pulled(client, number))
                assert [at for at, _ in found] == list(range(len(found)))
                assert site.run(self.offset(client, number, pb.BEGINNING)) == 0
                assert site.run(self.offset(client, number, pb.END)) == len(found)
                bodies.update(body for _, body in found)
            there = [s.body for s in self.sent if s.request.topic.name == "t" and s.state == "there"]
            assert bodies == Counter(there)

        @rule(client=clients, number=st.integers(0, 1), which=picks, beyond=st.booleans())
        def set_a_position(self, client: int, number: int, which: int, beyond: bool) -> None:
            end = site.run(self.offset(client, number, pb.END))
            wanted = end + 1 if beyond else which % (end + 1)
            request = rpc.UpdateOffsetRequest(
                group=pb.Resource(name="readers"), message_queue=self.queue(number), offset=wanted
            )
            code = site.run(site.call(client, "UpdateOffset", request)).status.code
            assert code == (Code.ILLEGAL_OFFSET if beyond else Code.OK), code
            if not beyond:
                self.positions[number] = wanted

        @rule(client=clients, number=st.integers(0, 1))
        def ask_for_a_position(self, client: int, number: int) -> None:
            request = rpc.GetOffsetRequest(
                group=pb.Resource(name="readers"), message_queue=self.queue(number)
            )
            answer = site.run(site.call(client, "GetOffset", request))
            if number in self.positions:
                assert (answer.status.code, answer.offset) == (Code.OK, self.positions[number])
            else:
                assert answer.status.code == Code.OFFSET_NOT_FOUND, answer

        # -- priorities -----------------------------------------------------------------------------

        @rule(client=clients, priorities=st.lists(st.integers(0, PRIORITIES - 1), min_size=1, max_size=4))
        def send_with_priorities(self, client: int, priorities: list[int]) -> None:
            for priority in priorities:
                message = self.written("urgent", message_type=pb.PRIORITY, priority=priority)
                self.note(message, site.run(site.send(client, message))[0])

        @rule(client=clients, batch=st.integers(1, 4), seconds=st.integers(1, 40))
        def receive_what_is_urgent(self, client: int, batch: int, seconds: int) -> None:
            ready = sorted((priority_of(one.request) for one in self.ready("urgent")), reverse=True)
            messages = site.run(site.receive(client, "urgent", batch, seconds))
            assert [priority_of(one) for one in messages] == ready[:batch]
            self.take("urgent", messages, seconds)

        # -- lite topics ----------------------------------------------------------------------------

        async def subscribe(self, client: int, action: int, *names: str) -> None:
            request = rpc.SyncLiteSubscriptionRequest(
                topic=pb.Resource(name="lite"),
                group=pb.Resource(name="lite-group"),
                lite_topic_set=names,
                action=action,
            )
            answer = await site.call(client, "SyncLiteSubscription", request)
            assert answer.status.code == Code.OK, answer

        @rule(
            client=clients,
            name=st.sampled_from(LITE_NAMES),
            count=st.integers(1, 3),
            crashes=st.booleans(),
        )
        def send_to_a_lite_topic_and_finish_it(
            self, client: int, name: str, count: int, crashes: bool
        ) -> None:
            """All of it comes, in order, to who subscribes to it and to nobody else, and not again."""
            other, another = (client + 1) % CLIENTS, next(one for one in LITE_NAMES if one != name)
            messages = [self.written("lite", message_type=pb.LITE, lite_topic=name) for _ in range(count)]
            for message in messages:
                site.run(site.send(client, message))
            if crashes:
                site.run(site.crash())
            site.run(self.subscribe(client, pb.COMPLETE_ADD, name))
            site.run(self.subscribe(other, pb.COMPLETE_ADD, another))
            came: list[bytes] = []
            for _ in range(count + 1):
                assert site.run(site.receive(other, "lite", 8, 30)) == []
                found = site.run(site.receive(client, "lite", 8, 30))
                assert {one.system_properties.lite_topic for one in found} <= {name}
                came += [one.body for one in found]
                handles = [one.system_properties.receipt_handle for one in found]
                if handles:
                    assert set(site.run(site.ack(client, "lite", *handles))) == {Code.OK}
            assert came == [one.body for one in messages]
            for one in (client, other):
                site.run(self.subscribe(one, pb.COMPLETE_REMOVE))

        # -- renewal by the gateway -----------------------------------------------------------------

        async def come(self, client: int) -> Any:
            """A consumer's stream of Telemetry, which is its sign of life."""
            entry = pb.SubscriptionEntry(topic=pb.Resource(name="kept"))
            subscription = pb.Subscription(group=pb.Resource(name="kept-group"), subscriptions=[entry])
            told = pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=subscription)
            method = site.channels[client].stream_stream(
                plain.SERVICE + "Telemetry",
                request_serializer=rpc.TelemetryCommand.SerializeToString,
                response_deserializer=rpc.TelemetryCommand.FromString,
            )
            stream = method(metadata=site._metadata(client))
            await stream.write(rpc.TelemetryCommand(settings=told))
            answer = await stream.read()
            assert answer.HasField("settings"), answer
            return stream

        @rule(client=clients, seconds=st.integers(1, 3 * RENEWED_S), crashes=st.booleans())
        def leave_renewing_to_the_gateway(self, client: int, seconds: int, crashes: bool) -> None:
            """It is hidden for as long as its client shows life, and for the consume timeout after a crash of
            the gateway that kept it; then it comes again."""
            other = (client + 1) % CLIENTS
            stream = site.run(self.come(client))
            site.run(site.send(client, self.written("kept")))
            [message] = site.run(site.receive(client, "kept", 1, 0, auto_renew=True))
            attempt, handle = 1, message.system_properties.receipt_handle
            for _ in range(seconds):
                site.run(site.pass_ms(1_000))
                assert site.run(site.receive(other, "kept", 1, 30)) == []
            if crashes:
                site.run(site.crash())
                site.run(site.pass_ms(RENEWED_S * 1_000))
                [message] = site.run(site.receive(other, "kept", 1, 30))
                attempt, handle = attempt + 1, message.system_properties.receipt_handle
            assert message.system_properties.delivery_attempt == attempt
            assert site.run(site.ack(client, "kept", handle)) == [Code.OK]
            stream.cancel()
            self.is_finished()

        @rule(client=clients)
        def take_what_nobody_renews(self, client: int) -> None:
            """Who shows no life has the consume timeout, to the millisecond."""
            other, stranger = (client + 1) % CLIENTS, CLIENTS * (100 + next(self.serials)) + client
            site.run(site.send(client, self.written("kept")))
            [message] = site.run(site.receive(stranger, "kept", 1, 0, auto_renew=True))
            site.run(site.pass_ms(RENEWED_S * 1_000 - 1))
            assert site.run(site.receive(other, "kept", 1, 30)) == []
            site.run(site.pass_ms(1))
            [message] = site.run(site.receive(other, "kept", 1, 30))
            assert message.system_properties.delivery_attempt == 2
            handle = message.system_properties.receipt_handle
            assert site.run(site.ack(client, "kept", handle)) == [Code.OK]
            self.is_finished()

        def is_finished(self) -> None:
            """Nothing that the gateway kept comes once more."""
            site.run(site.pass_ms(2 * RENEWED_S * 1_000))
            assert site.run(site.receive(0, "kept", 1, 30)) == []
            self.held()

        # -- groups that are changed ----------------------------------------------------------------

        async def change_group(self, topic: str, **changes: Any) -> None:
            assert site.broker is not None
            config = await site.broker.group(f"{topic}-group")
            await site.processor.metadata.update_group(
                Context(client_id="operator"), replace(config, **changes)
            )

        @rule(topic=st.sampled_from(("t", "lanes", "urgent")))
        def give_a_group_one_more_attempt(self, topic: str) -> None:
            """It counts for what is held now, and for what comes later; what is dead stays dead."""
            self.held()
            self.most[topic] += 1
            site.run(self.change_group(topic, max_attempts=self.most[topic]))
            for sent in self.sent:
                if sent.request.topic.name == topic:
                    sent.most = self.most[topic]

        @rule(client=clients, topic=st.sampled_from(("t", "urgent")), crashes=st.booleans())
        def stop_a_group_for_a_while(self, client: int, topic: str, crashes: bool) -> None:
            """Nothing is given out, and nothing is counted as an attempt."""
            site.run(self.change_group(topic, consume_enabled=False))
            if crashes:
                site.run(site.crash())
            with pytest.raises(AssertionError):  # it is refused
                site.run(site.receive(client, topic, 1, 30))
            site.run(self.change_group(topic, consume_enabled=True))

    return MoreGateways


def priority_of(message: pb.Message) -> int:
    return int(message.system_properties.priority)


@pytest.mark.timeout(900)
def test_gateways_agree_with_the_model_in_all_that_clients_do(site: Site) -> None:
    plain.check(make_machine(site))
