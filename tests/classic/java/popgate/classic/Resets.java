package popgate.classic;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Groups that are set elsewhere by an operator while their consumers run. */
final class Resets {
    private static final int EACH = 3;

    private Resets() {}

    /**
     * One group has read everything and is set back to the beginning; another one, whose listener hangs on the
     * first messages, is set to the end. Both get what is sent afterwards.
     */
    static void reset(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        List<MessageQueue> queues = Scenarios.queuesOf(producer, topic);
        Map<String, Integer> again = new ConcurrentHashMap<>();
        Set<String> hung = Run.newSet();
        CountDownLatch letGo = new CountDownLatch(1);
        for (int n = 0; n < EACH * queues.size(); n++) {
            Message message = Run.to(topic, "before " + n);
            run.sent(message, producer.send(message, queues.get(n % queues.size())));
        }
        DefaultMQPushConsumer back = run.push(run.get("back"), topic, "*", Run.consuming(message -> {
            run.saw(message, "back");
            again.merge(Run.text(message), 1, Integer::sum);
            return true;
        }));
        DefaultMQPushConsumer forward = run.push(
                run.get("forward"), topic, "*", (MessageListenerConcurrently) (messages, context) -> {
                    run.saw(messages.get(0), "forward");
                    hung.add(Run.text(messages.get(0)));
                    Mapped.hang(letGo);
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                });
        run.waitFor(() -> again.size() == EACH * queues.size() && Mapped.isIdle(back) && !hung.isEmpty());
        List<ProcessQueue> held = heldBy(forward, topic);
        reset(run, producer, queues.get(0), run.get("back"), 0);
        reset(run, producer, queues.get(0), run.get("forward"), System.currentTimeMillis());
        for (int n = 0; n < queues.size(); n++) {
            Message message = Run.to(topic, "after " + n);
            run.sent(message, producer.send(message, queues.get(n)));
        }
        // Through whatever worker of a gateway it is connected, it hears of it; of what is shared it keeps what it holds.
        run.waitFor(() -> run.get("straight") != null || held.stream().allMatch(ProcessQueue::isDropped));
        run.say("let go");
        letGo.countDown();
        run.waitFor(() -> again.entrySet().stream().allMatch(one -> one.getValue() > 1 || isAfter(one.getKey()))
                && again.keySet().stream().filter(Resets::isAfter).count() == queues.size()
                && hung.stream().filter(Resets::isAfter).count() == queues.size());
    }

    /** A member of a mapped group goes back to the beginning by itself: everything comes again, to one of the two. */
    @SuppressWarnings("deprecation") // nothing else sets where a push consumer is
    static void setBack(Run run) throws Exception {
        String topic = run.get("topic");
        String group = run.get("group");
        DefaultMQProducer producer = run.producer();
        Map<String, Integer> counts = new ConcurrentHashMap<>();
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        for (int n = 0; n < 2; n++) {
            members.add(run.push(group, topic, "*", Run.consuming(message -> {
                run.saw(message, "");
                counts.merge(Run.text(message), 1, Integer::sum);
                return true;
            })));
        }
        for (MessageQueue queue : Scenarios.queuesOf(producer, topic)) {
            for (int n = 0; n < EACH; n++) {
                Message message = Run.to(topic, queue.getQueueId() + " " + n);
                run.sent(message, producer.send(message, queue));
            }
        }
        run.waitFor(() -> counts.size() == EACH * 4 && members.stream().allMatch(Mapped::isIdle));
        members.get(0).getDefaultMQPushConsumerImpl().resetOffsetByTimeStamp(0);
        run.untilMapped(group, false);
        run.waitFor(() -> counts.values().stream().allMatch(count -> count > 1));
    }

    private static boolean isAfter(String body) {
        return body.startsWith("after");
    }

    /** As mqadmin's resetOffsetByTime asks a broker. */
    @SuppressWarnings("deprecation") // what is behind a producer is nobody's business, mostly
    private static void reset(Run run, DefaultMQProducer producer, MessageQueue queue, String group, long time)
            throws Exception {
        MQClientInstance client = producer.getDefaultMQProducerImpl().getmQClientFactory();
        String address = client.findBrokerAddressInPublish(queue.getBrokerName());
        Map<MessageQueue, Long> offsets = client.getMQClientAPIImpl().invokeBrokerToResetOffset(
                address, queue.getTopic(), group, time, true, Run.REQUEST_MS);
        run.say("reset", "group", group, "offsets", offsets.values().stream().sorted().toList());
    }

    /** Its queues as they are now: one that hears of a reset drops them, and has new ones 10 to 30 s later. */
    @SuppressWarnings("deprecation") // nothing else tells which queues it has
    private static List<ProcessQueue> heldBy(DefaultMQPushConsumer consumer, String topic) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().entrySet().stream()
                .filter(one -> one.getKey().getTopic().equals(topic))
                .map(Map.Entry::getValue)
                .toList();
    }
}
