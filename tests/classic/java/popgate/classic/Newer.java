package popgate.classic;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What came with 4.6: a class of its own, for 4.3 has none of its names. */
final class Newer {
    private static final int REPLY_MS = 60_000;
    /** How long no reply is waited for: the request must have been sent by then, also on a busy machine. */
    private static final int NO_REPLY_MS = 15_000;

    private Newer() {}

    private static DefaultLitePullConsumer lite(Run run, String group) {
        DefaultLitePullConsumer consumer = run.configured(new DefaultLitePullConsumer(group));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        return consumer;
    }

    /** Poll until there were so many, or patience ends. */
    private static List<MessageExt> polled(Run run, DefaultLitePullConsumer consumer, int count, String by) {
        List<MessageExt> found = new ArrayList<>();
        long deadline = System.nanoTime() + Run.PATIENCE;
        while (found.size() < count && System.nanoTime() < deadline) {
            for (MessageExt message : consumer.poll(500)) {
                run.saw(message, by);
                found.add(message);
            }
        }
        return found;
    }

    /**
     * A started consumer with these queues, all paused, so that no pull is under way: one that is can undo a
     * seek. The client's seek cancels the old pull task, but the task may have passed its last look at that.
     * Then it hands on what it pulled from the old offset, or takes the new offset for itself and ends.
     */
    private static DefaultLitePullConsumer assigned(Run run, MessageQueue... queues) throws Exception {
        DefaultLitePullConsumer consumer = lite(run, run.get("group"));
        consumer.assign(List.of(queues));
        consumer.pause(List.of(queues));
        consumer.start();
        run.atTheEnd(consumer::shutdown);
        return consumer;
    }

    static void liteAssign(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        List<MessageQueue> queues = Scenarios.queuesOf(producer, topic);
        long halfway = 0;
        for (int n = 0; n < 6; n++) {
            if (n == 3) {
                Run.rest(20);
                halfway = System.currentTimeMillis();
                Run.rest(20);
            }
            for (MessageQueue queue : queues.subList(0, 2)) {
                Message message = Run.to(topic, queue.getQueueId() + " " + n);
                run.sent(message, producer.send(message, queue));
            }
        }
        MessageQueue first = queues.get(0);
        MessageQueue second = queues.get(1);
        DefaultLitePullConsumer consumer = assigned(run, first, second);
        Collection<MessageQueue> known = consumer.fetchMessageQueues(topic);
        run.say("queues", "queues", known.stream().map(MessageQueue::getQueueId).sorted().toList());
        consumer.seek(first, 2);
        consumer.seekToBegin(second);
        consumer.resume(List.of(first, second));
        polled(run, consumer, 10, "from 2");
        consumer.commitSync();
        consumer.shutdown();
        consumer = assigned(run, first);
        consumer.seek(first, consumer.offsetForTimestamp(first, halfway));
        consumer.resume(List.of(first));
        polled(run, consumer, 3, "from halfway");
        consumer.shutdown();
        DefaultLitePullConsumer last = assigned(run, first);
        last.seekToBegin(first);
        last.resume(List.of(first));
        polled(run, last, 6, "from the beginning");
        last.seekToEnd(first); // nothing is there that a pull under way could bring: it needs no pause
        Message message = Run.to(topic, first.getQueueId() + " 6");
        run.sent(message, producer.send(message, first));
        polled(run, last, 1, "from the end");
        last.commitSync();
        run.waitFor(() -> {
            try {
                return last.committed(first) == 7 && last.committed(second) == 6;
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        run.say("committed", "first", last.committed(first), "second", last.committed(second));
    }

    static void liteSubscribe(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        for (int n = 0; n < 12; n++) {
            Message message = Run.to(topic, n % 3 == 0 ? "no" : "yes", "before " + n);
            run.sent(message, producer.send(message), "tag", message.getTags());
        }
        DefaultLitePullConsumer consumer = lite(run, run.get("group"));
        consumer.subscribe(topic, "yes");
        consumer.start();
        polled(run, consumer, 8, "first");
        consumer.commitSync();
        consumer.shutdown();
        for (int n = 0; n < 4; n++) {
            Message message = Run.to(topic, "yes", "after " + n);
            run.sent(message, producer.send(message), "tag", message.getTags());
        }
        DefaultLitePullConsumer next = lite(run, run.get("group"));
        next.subscribe(topic, "yes");
        next.start();
        run.atTheEnd(next::shutdown);
        polled(run, next, 4, "second");
    }

    /** Consumers that leave it to the broker how they read, and are told to pop. */
    static void popping(Run run) throws Exception {
        String topic = run.get("topic");
        Set<String> failed = Run.newSet();
        Set<String> done = Run.newSet();
        for (String by : List.of("one", "other")) {
            DefaultMQPushConsumer consumer = run.unstarted(run.get("group"));
            consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
            consumer.subscribe(topic, "*");
            run.started(consumer, Run.consuming(message -> {
                run.saw(message, by);
                if (Run.text(message).equals("p3") && failed.add("p3")) {
                    return false;
                }
                done.add(Run.text(message));
                return true;
            }));
        }
        DefaultMQProducer producer = run.producer();
        for (int n = 0; n < 20; n++) {
            Message message = Run.to(topic, "p" + n);
            run.sent(message, producer.send(message));
        }
        run.waitFor(() -> done.size() >= 20);
    }

    static void requestReply(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer requester = run.producer();
        DefaultMQProducer replier = run.producer();
        Set<String> silences = Run.newSet();
        run.push(run.get("group"), topic, "*", Run.consuming(message -> {
            run.saw(message, "replier");
            if (Run.text(message).startsWith("silence")) {
                silences.add(Run.text(message));
                return true;
            }
            try {
                byte[] body = ("reply to " + Run.text(message)).getBytes(StandardCharsets.UTF_8);
                Message reply = MessageUtil.createReplyMessage(message, body);
                reply.putUserProperty("mood", "good");
                replier.send(reply, Run.REQUEST_MS);
            } catch (Exception error) {
                run.say("not replied", "error", Run.errorFacts(error));
            }
            return true;
        }));
        Message request = Run.to(topic, "TagR", "first");
        tell(run, "sync", requester.request(request, REPLY_MS));
        CompletableFuture<Message> answered = new CompletableFuture<>();
        requester.request(Run.to(topic, "second"), new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                if (message != null) { // 4.9 calls once more before, when the request was sent
                    answered.complete(message);
                }
            }

            @Override
            public void onException(Throwable error) {
                answered.completeExceptionally(error);
            }
        }, REPLY_MS);
        tell(run, "async", answered.get(REPLY_MS, TimeUnit.MILLISECONDS));
        MessageQueue queue = Scenarios.queuesOf(requester, topic).get(1);
        tell(run, "to a queue", requester.request(Run.to(topic, "third"), queue, REPLY_MS));
        run.tryTo("no reply", () -> requester.request(Run.to(topic, "silence"), NO_REPLY_MS));
        run.waitFor(() -> !silences.isEmpty());
    }

    private static void tell(Run run, String by, Message reply) {
        run.say("replied", "by", by, "body", Run.text(reply), "properties", reply.getProperties());
    }
}
