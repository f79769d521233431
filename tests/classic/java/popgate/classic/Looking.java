package popgate.classic;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullCallback;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Reading by position, by id and by key. */
@SuppressWarnings("deprecation") // the pull consumer is, in versions that still have it
final class Looking {
    private Looking() {}

    static void lookUp(Run run) throws Exception {
        String topic = run.get("topic");
        String key = run.get("key");
        DefaultMQProducer producer = run.producer();
        long begin = System.currentTimeMillis() - 60_000;
        List<SendResult> results = new ArrayList<>();
        for (int n = 0; n < 3; n++) {
            Message message = new Message(topic, "TagQ", key + " other" + n, ("q" + n).getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("number", String.valueOf(n));
            results.add(run.sent(message, producer.send(message)));
        }
        for (SendResult result : results) {
            run.saw(producer.viewMessage(topic, result.getOffsetMsgId()), "by place", "asked", result.getMsgId());
        }
        long deadline = System.nanoTime() + Run.PATIENCE;
        while (true) { // a broker's index comes a little later than its messages
            try {
                QueryResult found = producer.queryMessage(topic, key, 32, begin, System.currentTimeMillis() + 60_000);
                if (found.getMessageList().size() >= 3 || System.nanoTime() > deadline) {
                    found.getMessageList().forEach(message -> run.saw(message, "by key"));
                    break;
                }
            } catch (MQClientException notYet) {
                if (System.nanoTime() > deadline) {
                    throw notYet;
                }
            }
            Run.rest(100);
        }
        for (SendResult result : results) {
            run.saw(producer.viewMessage(topic, result.getMsgId()), "by id", "asked", result.getMsgId());
        }
        run.tryTo("no such key", () -> producer.queryMessage(topic, "none", 32, begin, begin + 120_000));
    }

    static void pull(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        MessageQueue queue = Scenarios.queuesOf(producer, topic).get(1);
        long halfway = 0;
        for (int n = 0; n < 6; n++) {
            if (n == 3) {
                Run.rest(20);
                halfway = System.currentTimeMillis();
                Run.rest(20);
            }
            Message message = Run.to(topic, n % 2 == 0 ? "even" : "odd", "p" + n);
            run.sent(message, producer.send(message, queue));
        }
        DefaultMQPullConsumer consumer = puller(run, run.get("group"));
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchSubscribeMessageQueues(topic));
        queues.sort(Comparator.naturalOrder());
        run.waitFor(() -> highest(consumer, queue) == 6); // a broker's queues come a little later than its log
        run.say("queues", "queues", queues.stream().map(MessageQueue::getQueueId).toList());
        run.say("bounds", "min", consumer.minOffset(queue), "max", consumer.maxOffset(queue),
                "halfway", consumer.searchOffset(queue, halfway), "empty", consumer.maxOffset(queues.get(0)));
        long at = 0;
        for (PullResult found = pulled(run, consumer, queue, "*", 0, "all");
                found.getPullStatus() == PullStatus.FOUND;
                found = pulled(run, consumer, queue, "*", at, "all")) {
            at = found.getNextBeginOffset();
        }
        pulled(run, consumer, queue, "odd", 0, "odd");
        pulled(run, consumer, queue, "nothing", 0, "nothing");
        pulled(run, consumer, queue, "*", 4, "from 4");
        pulled(run, consumer, queue, "*", 1_000, "far away");
        CompletableFuture<PullResult> later = new CompletableFuture<>();
        consumer.pullBlockIfNotFound(queue, "*", at, 32, new PullCallback() {
            @Override
            public void onSuccess(PullResult result) {
                later.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                later.completeExceptionally(error);
            }
        });
        Message message = Run.to(topic, "even", "p6");
        run.sent(message, producer.send(message, queue));
        tell(run, later.get(60, TimeUnit.SECONDS), "waited");
        run.say("committed", "step", "before", "offset", consumer.fetchConsumeOffset(queue, true));
        consumer.updateConsumeOffset(queue, 5);
        consumer.getOffsetStore().persist(queue);
        consumer.shutdown();
        DefaultMQPullConsumer next = puller(run, run.get("group"));
        run.waitFor(() -> {
            try {
                return next.fetchConsumeOffset(queue, true) == 5;
            } catch (MQClientException error) {
                throw new IllegalStateException(error);
            }
        });
        run.say("committed", "step", "after", "offset", next.fetchConsumeOffset(queue, true));
    }

    private static long highest(DefaultMQPullConsumer consumer, MessageQueue queue) {
        try {
            return consumer.maxOffset(queue);
        } catch (MQClientException error) {
            throw new IllegalStateException(error);
        }
    }

    private static DefaultMQPullConsumer puller(Run run, String group) throws MQClientException {
        DefaultMQPullConsumer consumer = run.configured(new DefaultMQPullConsumer(group));
        consumer.setConsumerPullTimeoutMillis(Run.REQUEST_MS);
        consumer.start();
        Run.asksPatiently(consumer.getDefaultMQPullConsumerImpl());
        run.atTheEnd(consumer::shutdown);
        return consumer;
    }

    private static PullResult pulled(
            Run run, DefaultMQPullConsumer consumer, MessageQueue queue, String tags, long offset, String by)
            throws Exception {
        PullResult result = consumer.pull(queue, tags, offset, 32);
        tell(run, result, by);
        return result;
    }

    private static void tell(Run run, PullResult result, String by) {
        run.say("pulled", "by", by, "status", result.getPullStatus(), "next", result.getNextBeginOffset(),
                "min", result.getMinOffset(), "max", result.getMaxOffset());
        if (result.getMsgFoundList() != null) {
            for (MessageExt message : result.getMsgFoundList()) {
                run.saw(message, by);
            }
        }
    }

    /** Wait for the first dead letter of a topic and tell of it. */
    static void deadLetter(Run run, String topic) throws Exception {
        DefaultMQPullConsumer consumer = puller(run, run.get("letters"));
        long deadline = System.nanoTime() + Run.PATIENCE;
        while (System.nanoTime() < deadline) {
            try {
                for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                    PullResult found = consumer.pull(queue, "*", consumer.minOffset(queue), 32);
                    if (found.getPullStatus() == PullStatus.FOUND) {
                        tell(run, found, "dead letters");
                        return;
                    }
                }
            } catch (MQClientException notYet) {
                run.say("no dead letter yet", "error", Run.errorFacts(notYet));
            }
            Run.rest(500);
        }
        run.say("gave up waiting");
    }
}
