package popgate.classic;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The scenarios that clients of every version can play. */
final class Scenarios {
    /** One scenario. */
    interface Scenario {
        void play(Run run) throws Exception;
    }

    private static final int QUEUES = 4;
    private static final MessageQueueSelector BY_NUMBER =
            (queues, message, number) -> queues.get((Integer) number % queues.size());
    private static final Map<String, Scenario> ALL_OF_THEM = new HashMap<>();

    static {
        ALL_OF_THEM.put("sending", Scenarios::sending);
        ALL_OF_THEM.put("batch", Scenarios::batch);
        ALL_OF_THEM.put("delay", Scenarios::delay);
        ALL_OF_THEM.put("compressed", Scenarios::compressed);
        ALL_OF_THEM.put("refused", Scenarios::refused);
        ALL_OF_THEM.put("tags", Scenarios::tags);
        ALL_OF_THEM.put("sql92", Scenarios::sql92);
        ALL_OF_THEM.put("shared", Scenarios::shared);
        ALL_OF_THEM.put("orderly", Scenarios::orderly);
        ALL_OF_THEM.put("orderly_shared", Scenarios::orderlyShared);
        ALL_OF_THEM.put("broadcast", Scenarios::broadcast);
        ALL_OF_THEM.put("send_back", Scenarios::sendBack);
        ALL_OF_THEM.put("send_back_default", Scenarios::sendBackDefault);
        ALL_OF_THEM.put("restart", Scenarios::restart);
        ALL_OF_THEM.put("transaction", Scenarios::transaction);
        ALL_OF_THEM.put("transaction_successor", Scenarios::transactionSuccessor);
        ALL_OF_THEM.put("large", Scenarios::large);
        ALL_OF_THEM.put("many", Scenarios::many);
        ALL_OF_THEM.put("first_use", Scenarios::firstUse);
        ALL_OF_THEM.put("fresh_group", Scenarios::freshGroup);
        ALL_OF_THEM.put("idle", Scenarios::idle);
        ALL_OF_THEM.put("resubscribe", Scenarios::resubscribe);
        ALL_OF_THEM.put("orderly_dead_letter", Scenarios::orderlyDeadLetter);
        ALL_OF_THEM.put("timed", Timed::timed);
        ALL_OF_THEM.put("look_up", Looking::lookUp);
        ALL_OF_THEM.put("pull", Looking::pull);
        ALL_OF_THEM.put("lite_assign", run -> Newer.liteAssign(run));
        ALL_OF_THEM.put("lite_subscribe", run -> Newer.liteSubscribe(run));
        ALL_OF_THEM.put("request_reply", run -> Newer.requestReply(run));
        ALL_OF_THEM.put("mapped_shared", Mapped::shared);
        ALL_OF_THEM.put("reset", Resets::reset);
        ALL_OF_THEM.put("set_back", Resets::setBack);
        ALL_OF_THEM.put("stuck", Mapped::stuck);
        ALL_OF_THEM.put("late_send_back", Mapped::lateSendBack);
        ALL_OF_THEM.put("switches", Mapped::switches);
        ALL_OF_THEM.put("popping", run -> Newer.popping(run));
    }

    private Scenarios() {}

    static Scenario named(String name) {
        return ALL_OF_THEM.get(name);
    }

    static List<MessageQueue> queuesOf(DefaultMQProducer producer, String topic) throws MQClientException {
        List<MessageQueue> queues = new ArrayList<>(producer.fetchPublishMessageQueues(topic));
        queues.sort(Comparator.naturalOrder());
        return queues;
    }

    // sending

    private static void sending(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        Message full = new Message(topic, "TagA", "k1 k2", "sync, grüße 世界".getBytes(StandardCharsets.UTF_8));
        full.setFlag(7);
        full.putUserProperty("colour", "blue");
        full.putUserProperty("größe", "übergroß 🐇");
        run.sent(full, producer.send(full), "label", "full");
        Message bare = Run.to(topic, "bare");
        run.sent(bare, producer.send(bare, 15_000), "label", "bare");
        Message later = Run.to(topic, "async");
        CompletableFuture<SendResult> answered = new CompletableFuture<>();
        producer.send(later, callback(answered));
        run.sent(later, answered.get(Run.PATIENCE, TimeUnit.NANOSECONDS), "label", "async");
        for (int n = 0; n < 3; n++) {
            producer.sendOneway(Run.to(topic, "one-way " + n));
        }
        for (int n = 0; n < QUEUES; n++) {
            Message chosen = Run.to(topic, "selected " + n);
            run.sent(chosen, producer.send(chosen, BY_NUMBER, n), "label", "selected", "wanted", n);
        }
        MessageQueue queue = queuesOf(producer, topic).get(2);
        Message there = Run.to(topic, "to a queue");
        run.sent(there, producer.send(there, queue), "label", "queue", "wanted", queue.getQueueId());
        Set<String> bodies = Run.newSet();
        run.push(run.get("group"), topic, "*", run.collecting(bodies, ""));
        run.waitFor(() -> bodies.size() >= 11);
    }

    static SendCallback callback(CompletableFuture<SendResult> answered) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                answered.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                answered.completeExceptionally(error);
            }
        };
    }

    private static void batch(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        List<Message> messages = new ArrayList<>();
        for (int n = 0; n < 10; n++) {
            Message one = new Message(topic, "Tag" + n % 2, "key" + n, ("b" + n).getBytes(StandardCharsets.UTF_8));
            one.putUserProperty("number", String.valueOf(n));
            messages.add(one);
        }
        SendResult result = producer.send(messages);
        run.say("batch", "ids", Arrays.asList(result.getMsgId().split(",")),
                "offset_ids", Arrays.asList(result.getOffsetMsgId().split(",")), "status", result.getSendStatus(),
                "queue", result.getMessageQueue().getQueueId(), "offset", result.getQueueOffset());
        Set<String> bodies = Run.newSet();
        run.push(run.get("group"), topic, "*", run.collecting(bodies, ""));
        run.waitFor(() -> bodies.size() >= 10);
        Set<String> odd = Run.newSet();
        run.push(run.get("odd"), topic, "Tag1", run.collecting(odd, "odd"));
        run.waitFor(() -> odd.size() >= 5);
    }

    private static void delay(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        for (int level = 1; level <= 2; level++) {
            Message late = Run.to(topic, "TagL", "level " + level);
            late.setDelayTimeLevel(level);
            run.sent(late, producer.send(late), "level", level);
        }
        Message now = Run.to(topic, "now");
        run.sent(now, producer.send(now), "level", 0);
        Set<String> bodies = Run.newSet();
        run.push(run.get("group"), topic, "*", run.collecting(bodies, ""));
        run.waitFor(() -> bodies.size() >= 3);
    }

    private static void compressed(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        Set<String> lengths = Run.newSet();
        run.push(run.get("group"), topic, "*", Run.consuming(message -> {
            run.saw(message, "");
            lengths.add(String.valueOf(message.getBody().length));
            return true;
        }));
        int size = 100_000;
        List<String> kinds = new ArrayList<>(List.of("as shipped"));
        for (String kind : List.of("ZLIB", "LZ4", "ZSTD")) {
            DefaultMQProducer another = kinds.size() == 1 ? producer : run.producer();
            if (Run.set(another, "setCompressType", kind)) {
                kinds.add(kind);
            }
        }
        for (String kind : kinds) {
            Run.set(producer, "setCompressType", kind);
            Message message = new Message(topic, kind, "ab".repeat(size++).getBytes(StandardCharsets.UTF_8));
            run.sent(message, producer.send(message), "kind", kind);
        }
        byte[] noise = new byte[50_000];
        new Random(1).nextBytes(noise);
        Message message = new Message(topic, "noise", noise);
        run.sent(message, producer.send(message), "kind", "noise");
        run.waitFor(() -> lengths.size() >= kinds.size() + 1);
    }

    private static void refused(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        run.tryTo("no topic", () -> producer.send(Run.to(run.get("unknown"), "lost"), 5_000));
        run.tryTo("too large", () -> producer.send(new Message(run.get("topic"), new byte[5 << 20])));
        producer.setMaxMessageSize(8 << 20);
        byte[] noise = new byte[5 << 20];
        new Random(1).nextBytes(noise);
        run.tryTo("too large for the broker", () -> producer.send(new Message(run.get("topic"), noise)));
        run.tryTo("a good one", () -> producer.send(Run.to(run.get("topic"), "good")));
    }

    private static void large(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        producer.setCompressMsgBodyOverHowmuch(64 << 20);
        for (int size : new int[] {1, 64 << 10, 1 << 20, 1 << 20, 4 << 20}) {
            byte[] noise = new byte[size];
            new Random(size).nextBytes(noise);
            Message message = new Message(topic, noise);
            run.sent(message, producer.send(message));
        }
        AtomicInteger count = new AtomicInteger();
        run.push(run.get("group"), topic, "*", Run.consuming(message -> {
            run.saw(message, "");
            count.incrementAndGet();
            return true;
        }));
        run.waitFor(() -> count.get() >= 5);
    }

    /** Sent without waiting for the answers, while a consumer reads. */
    private static void many(Run run) throws Exception {
        String topic = run.get("topic");
        int total = 2_000;
        DefaultMQProducer producer = run.producer();
        Set<String> bodies = Run.newSet();
        AtomicInteger count = new AtomicInteger();
        run.push(run.get("group"), topic, "*", Run.consuming(message -> {
            count.incrementAndGet();
            return bodies.add(Run.text(message)) || true;
        }));
        Semaphore room = new Semaphore(32);
        AtomicInteger failed = new AtomicInteger();
        for (int n = 0; n < total; n++) {
            room.acquire();
            producer.send(Run.to(topic, "m" + n), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    room.release();
                }

                @Override
                public void onException(Throwable error) {
                    run.say("not sent", "error", Run.errorFacts(error));
                    failed.incrementAndGet();
                    room.release();
                }
            });
        }
        room.acquire(32);
        run.waitFor(() -> bodies.size() >= total - failed.get());
        run.say("many", "failed", failed.get(), "came", bodies.size(), "deliveries", count.get());
    }

    /** Neither the topic nor the group is there before. */
    private static void firstUse(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        for (int n = 0; n < 8; n++) {
            Message message = Run.to(topic, "first " + n);
            run.sent(message, producer.send(message));
        }
        Set<String> bodies = Run.newSet();
        run.push(run.get("group"), topic, "*", run.collecting(bodies, ""));
        run.waitFor(() -> bodies.size() >= 8);
    }

    /** As shipped a new group begins at the end; what is sent to new queues while it starts is not lost to it. */
    private static void freshGroup(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        Message hello = Run.to(run.get("other"), "hello"); // so that the producer is ready
        producer.send(hello);
        Set<String> bodies = Run.newSet();
        DefaultMQPushConsumer consumer = run.unstarted(run.get("group"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumer.subscribe(topic, "*");
        CompletableFuture<Void> sending = CompletableFuture.runAsync(() -> {
            try {
                for (int n = 0; n < 200; n++) {
                    Message message = Run.to(topic, "m" + n);
                    run.sent(message, producer.send(message));
                    Run.rest(2);
                }
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        run.started(consumer, run.collecting(bodies, ""));
        sending.get(Run.PATIENCE, TimeUnit.NANOSECONDS);
        run.waitFor(() -> bodies.size() >= 200);
    }

    /** A consumer waits for longer than any long poll is held. */
    private static void idle(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        Set<String> bodies = Run.newSet();
        run.push(run.get("group"), topic, "*", run.collecting(bodies, ""));
        Run.rest(21_000);
        for (int n = 0; n < 4; n++) {
            Message message = Run.to(topic, "after a while " + n);
            run.sent(message, producer.send(message));
        }
        run.waitFor(() -> bodies.size() >= 4);
    }

    // filters

    private static void tags(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        for (int n = 0; n < 4; n++) {
            for (String tag : List.of("a", "b", "c", "标签")) {
                Message message = Run.to(topic, tag, tag + n);
                run.sent(message, producer.send(message), "tag", tag);
            }
        }
        Message bare = Run.to(topic, "bare");
        run.sent(bare, producer.send(bare), "tag", "");
        Set<String> some = Run.newSet();
        run.push(run.get("group"), topic, "a || 标签", run.collecting(some, "some"));
        Set<String> everything = Run.newSet();
        run.push(run.get("all"), topic, "*", run.collecting(everything, "all"));
        run.waitFor(() -> some.size() >= 8 && everything.size() >= 17);
    }

    private static void sql92(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        for (int n = 0; n < 8; n++) {
            Message message = Run.to(topic, n % 2 == 0 ? "even" : "odd", "n" + n);
            message.putUserProperty("n", String.valueOf(n));
            if (n % 3 == 0) {
                message.putUserProperty("name", "o'three");
            }
            run.sent(message, producer.send(message), "n", n);
        }
        Set<String> range = Run.newSet();
        run.push(run.get("range"), topic, MessageSelector.bySql("n BETWEEN 2 AND 5 AND TAGS IN ('even', 'x')"),
                run.collecting(range, "range"));
        Set<String> named = Run.newSet();
        run.push(run.get("named"), topic, MessageSelector.bySql("name IS NOT NULL AND n > 0"),
                run.collecting(named, "named"));
        run.waitFor(() -> range.size() >= 2 && named.size() >= 2);
    }

    /** A consumer changes its mind, and subscribes to one topic more. */
    private static void resubscribe(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        MessageQueue queue = queuesOf(producer, topic).get(0);
        Set<String> bodies = Run.newSet();
        DefaultMQPushConsumer consumer = run.push(run.get("group"), topic, "a", run.collecting(bodies, ""));
        for (String body : List.of("b1", "a1")) {
            Message message = Run.to(topic, body.substring(0, 1), body);
            run.sent(message, producer.send(message, queue));
        }
        run.waitFor(() -> bodies.contains("a1"));
        consumer.subscribe(topic, "b");
        consumer.subscribe(run.get("second"), "*");
        for (String body : List.of("a2", "b2")) {
            Message message = Run.to(topic, body.substring(0, 1), body);
            run.sent(message, producer.send(message, queue));
        }
        Message other = Run.to(run.get("second"), "c", "c1");
        run.sent(other, producer.send(other));
        run.waitFor(() -> bodies.contains("b2") && bodies.contains("c1"));
    }

    // members of a group

    /** One member of a group: what it saw, by the number of the round. */
    private static final class Member {
        final Map<Integer, Set<Integer>> queues = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer;

        void saw(MessageExt message) {
            int round = Integer.parseInt(Run.text(message).split(" ")[0]);
            queues.computeIfAbsent(round, any -> ConcurrentHashMap.newKeySet()).add(message.getQueueId());
        }

        Set<Integer> in(int round) {
            return new TreeSet<>(queues.getOrDefault(round, Set.of()));
        }
    }

    /** Sends rounds, a message to each queue, until one of them came in the way that is wanted. */
    private static int rounds(
            Run run, DefaultMQProducer producer, int first, String by, List<Member> members, List<Integer> wanted)
            throws Exception {
        String topic = run.get("topic");
        List<MessageQueue> queues = queuesOf(producer, topic);
        long deadline = System.nanoTime() + Run.PATIENCE;
        for (int round = first; ; round++) {
            for (MessageQueue queue : queues) {
                Message message = Run.to(topic, round + " " + queue.getQueueId());
                run.sent(message, producer.send(message, queue));
            }
            int now = round;
            run.waitFor(() -> {
                Set<Integer> all = new TreeSet<>();
                members.forEach(member -> all.addAll(member.in(now)));
                return all.size() >= queues.size();
            });
            List<Integer> counts = members.stream().map(member -> member.in(now).size()).toList();
            if (counts.equals(wanted)) {
                run.say("as wanted", "step", by, "counts", counts, "rounds", round - first + 1);
                return round + 1;
            }
            if (System.nanoTime() > deadline) {
                run.say("never as wanted", "step", by, "counts", counts);
                return round + 1;
            }
            Run.rest(300);
        }
    }

    private static void shared(Run run) throws Exception {
        play(run, member -> Run.consuming(message -> {
            run.saw(message, "");
            member.saw(message);
            return true;
        }));
    }

    private static void orderlyShared(Run run) throws Exception {
        play(run, member -> (MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                run.saw(message, "");
                member.saw(message);
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
    }

    /** What a listener is made of. */
    private interface Making {
        org.apache.rocketmq.client.consumer.listener.MessageListener of(Member member);
    }

    private static void play(Run run, Making listeners) throws Exception {
        DefaultMQProducer producer = run.producer();
        List<Member> members = List.of(new Member(), new Member());
        Member one = members.get(0);
        Member two = members.get(1);
        one.consumer = run.push(run.get("group"), run.get("topic"), "*", listeners.of(one));
        int next = rounds(run, producer, 0, "alone", members, List.of(QUEUES, 0));
        two.consumer = run.push(run.get("group"), run.get("topic"), "*", listeners.of(two));
        next = rounds(run, producer, next, "both", members, List.of(QUEUES / 2, QUEUES / 2));
        one.consumer.shutdown();
        run.say("one left");
        rounds(run, producer, next, "the other", members, List.of(0, QUEUES));
    }

    private static void orderly(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        for (int n = 0; n < 6; n++) {
            for (int order = 0; order < 3; order++) {
                Message message = Run.to(topic, "order " + order + " " + n);
                message.putUserProperty("order", String.valueOf(order));
                run.sent(message, producer.send(message, BY_NUMBER, order), "order", order);
            }
        }
        Set<String> consumed = Run.newSet();
        Set<String> failed = Run.newSet();
        DefaultMQPushConsumer consumer = run.unstarted(run.get("group"));
        consumer.setSuspendCurrentQueueTimeMillis(200);
        consumer.subscribe(topic, "*");
        run.started(consumer, (MessageListenerOrderly) (messages, context) -> {
            boolean good = true;
            for (MessageExt message : messages) {
                String body = Run.text(message);
                boolean fails = body.equals("order 1 2") && failed.add(body);
                run.saw(message, "", "consumed", !fails);
                if (fails) {
                    good = false;
                } else {
                    consumed.add(body);
                }
            }
            return good ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
        });
        run.waitFor(() -> consumed.size() >= 18);
    }

    private static void broadcast(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        List<Set<String>> seen = List.of(Run.newSet(), Run.newSet());
        for (int n = 0; n < 2; n++) {
            DefaultMQPushConsumer consumer = run.unstarted(run.get("group"));
            Run.broadcasting(consumer);
            consumer.subscribe(topic, "*");
            run.started(consumer, run.collecting(seen.get(n), "consumer " + n));
        }
        for (int n = 0; n < 8; n++) {
            Message message = Run.to(topic, "m" + n);
            run.sent(message, producer.send(message));
        }
        run.waitFor(() -> seen.stream().allMatch(one -> one.size() >= 8));
    }

    // failing

    private static void sendBack(Run run) throws Exception {
        String topic = run.get("topic");
        String group = run.get("group");
        DefaultMQProducer producer = run.producer();
        Message bad = new Message(topic, "TagB", "bad key", "bad".getBytes(StandardCharsets.UTF_8));
        bad.putUserProperty("colour", "red");
        run.sent(bad, producer.send(bad));
        Message poor = Run.to(topic, "better at the second attempt");
        run.sent(poor, producer.send(poor));
        AtomicInteger attempts = new AtomicInteger();
        Set<String> good = Run.newSet();
        DefaultMQPushConsumer consumer = run.unstarted(group);
        consumer.setMaxReconsumeTimes(2);
        consumer.subscribe(topic, "*");
        run.started(consumer, (MessageListenerConcurrently) (messages, context) -> {
            context.setDelayLevelWhenNextConsume(1); // a second
            boolean all = true;
            for (MessageExt message : messages) {
                String body = Run.text(message);
                run.saw(message, "");
                if (body.equals("bad")) {
                    attempts.incrementAndGet();
                    all = false;
                } else if (message.getReconsumeTimes() == 0) {
                    all = false;
                } else {
                    good.add(body);
                }
            }
            return all ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        run.waitFor(() -> attempts.get() >= 3 && good.size() >= 1);
        Looking.deadLetter(run, "%DLQ%" + group);
    }

    private static void sendBackDefault(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        Message message = Run.to(topic, "again");
        run.sent(message, producer.send(message));
        AtomicInteger attempts = new AtomicInteger();
        run.push(run.get("group"), topic, "*", Run.consuming(one -> {
            run.saw(one, "");
            attempts.incrementAndGet();
            return one.getReconsumeTimes() > 0;
        }));
        run.waitFor(() -> attempts.get() >= 2);
    }

    /** What an orderly consumer gives up is a dead letter, and the queue goes on. */
    private static void orderlyDeadLetter(Run run) throws Exception {
        String topic = run.get("topic");
        String group = run.get("group");
        DefaultMQProducer producer = run.producer();
        MessageQueue queue = queuesOf(producer, topic).get(0);
        for (String body : List.of("bad", "next")) {
            Message message = new Message(topic, "TagO", body + " key", body.getBytes(StandardCharsets.UTF_8));
            run.sent(message, producer.send(message, queue));
        }
        Set<String> consumed = Run.newSet();
        DefaultMQPushConsumer consumer = run.unstarted(group);
        consumer.setSuspendCurrentQueueTimeMillis(200);
        consumer.setMaxReconsumeTimes(1);
        consumer.subscribe(topic, "*");
        run.started(consumer, (MessageListenerOrderly) (messages, context) -> {
            MessageExt message = messages.get(0);
            run.saw(message, "");
            if (Run.text(message).equals("bad")) {
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            consumed.add(Run.text(message));
            return ConsumeOrderlyStatus.SUCCESS;
        });
        run.waitFor(() -> consumed.contains("next"));
        Looking.deadLetter(run, "%DLQ%" + group);
    }

    private static void restart(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        for (int n = 0; n < 40; n++) {
            Message message = Run.to(topic, "before " + n);
            run.sent(message, producer.send(message));
        }
        Set<String> before = Run.newSet();
        DefaultMQPushConsumer first = run.push(run.get("group"), topic, "*", run.collecting(before, "first"));
        run.waitFor(() -> before.size() >= 40 && Mapped.isIdle(first));
        Run.rest(1_000); // what a listener has just finished is not yet committed at a shutdown
        first.shutdown();
        run.say("shut down");
        for (int n = 0; n < 8; n++) {
            Message message = Run.to(topic, "after " + n);
            run.sent(message, producer.send(message));
        }
        Set<String> after = Run.newSet();
        run.push(run.get("group"), topic, "*", run.collecting(after, "second"));
        run.waitFor(() -> after.stream().filter(body -> body.startsWith("after")).count() >= 8);
    }

    // transactions

    private static void transaction(Run run) throws Exception {
        String topic = run.get("topic");
        Set<String> checked = Run.newSet();
        Set<String> bodies = Run.newSet();
        TransactionMQProducer producer = run.transacting(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object how) {
                run.say("executed", "body", Run.text(message), "transaction", String.valueOf(message.getTransactionId()));
                return (LocalTransactionState) how;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String body = Run.text(message);
                run.say("checked", "body", body, "id", message.getMsgId(), "topic", message.getTopic(),
                        "transaction", String.valueOf(message.getTransactionId()),
                        "properties", message.getProperties());
                checked.add(body);
                return body.equals("asked, yes")
                        ? LocalTransactionState.COMMIT_MESSAGE
                        : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        Map<String, LocalTransactionState> all = new HashMap<>();
        all.put("yes", LocalTransactionState.COMMIT_MESSAGE);
        all.put("no", LocalTransactionState.ROLLBACK_MESSAGE);
        all.put("asked, yes", LocalTransactionState.UNKNOW);
        all.put("asked, no", LocalTransactionState.UNKNOW);
        for (Map.Entry<String, LocalTransactionState> one : all.entrySet()) {
            Message message = new Message(topic, "TagT", "key", one.getKey().getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("colour", "green");
            run.sent(message, producer.sendMessageInTransaction(message, one.getValue()), "label", one.getKey());
        }
        run.push(run.get("group"), topic, "*", run.collecting(bodies, ""));
        run.waitFor(() -> bodies.size() >= 2 && checked.size() >= 2);
        Run.rest(5_000); // longer than brokers wait between checks here: rolled back ones are not asked for
    }

    /** A producer dies with a half message; another one of its group is asked. */
    private static void transactionSuccessor(Run run) throws Exception {
        String topic = run.get("topic");
        TransactionMQProducer first = run.transacting(asked(run, "first"));
        for (String body : List.of("yes", "no")) {
            Message message = Run.to(topic, body);
            run.sent(message, first.sendMessageInTransaction(message, null));
        }
        first.shutdown();
        run.say("shut down");
        // A producer tells only those brokers of itself that it has sent to.
        run.transacting(asked(run, "second")).send(Run.to(topic, "hello"));
        Set<String> bodies = Run.newSet();
        run.push(run.get("group"), topic, "*", run.collecting(bodies, ""));
        run.waitFor(() -> bodies.contains("yes"));
    }

    private static TransactionListener asked(Run run, String by) {
        return new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object how) {
                return LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                run.say("checked", "by", by, "body", Run.text(message));
                if (by.equals("first")) { // asked before it left: it still does not know
                    return LocalTransactionState.UNKNOW;
                }
                return Run.text(message).equals("yes")
                        ? LocalTransactionState.COMMIT_MESSAGE
                        : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        };
    }
}
