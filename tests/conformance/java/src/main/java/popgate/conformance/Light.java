package popgate.conformance;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.OffsetOption;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/** Lite topics and priorities: a class of its own, for the oldest version of the client has none of its names. */
final class Light {
    private Light() {}

    /** A client gets the lite topics that it subscribes to, each in its order, and no others. */
    static void lite(Run run) throws Exception {
        String topic = run.get("topic");
        AtomicInteger finished = new AtomicInteger();
        Set<String> failed = ConcurrentHashMap.newKeySet();
        LitePushConsumer consumer = run.lite(run.get("group"), topic, message -> {
            String body = Run.text(message);
            boolean good = !body.equals("room-1 2") || !failed.add(body);
            run.saw(message, "", "consumed", good, "lite", message.getLiteTopic().orElse(""));
            if (good) {
                finished.incrementAndGet();
            }
            return good ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
        });
        Producer producer = run.producer(topic);
        run.tryTo("an illegal name", () -> consumer.subscribeLite("no good"));
        consumer.subscribeLite("room-1");
        consumer.subscribeLite("room-2");
        sendTo(run, producer, topic, List.of("room-1", "room-2", "room-3"), 0, 5);
        run.waitFor(() -> finished.get() >= 10);
        run.say("two rooms");
        consumer.unsubscribeLite("room-2");
        sendTo(run, producer, topic, List.of("room-1", "room-2"), 5, 7);
        run.waitFor(() -> finished.get() >= 12);
        consumer.subscribeLite("room-3", OffsetOption.ofTailN(2));
        run.waitFor(() -> finished.get() >= 14);
    }

    private static void sendTo(Run run, Producer producer, String topic, List<String> rooms, int from, int to)
            throws Exception {
        for (int n = from; n < to; n++) {
            for (String room : rooms) {
                run.sent(producer, Run.to(topic, room + " " + n).setLiteTopic(room), "lite", room);
            }
        }
    }

    /** What is more urgent comes first. */
    static void priority(Run run) throws Exception {
        String topic = run.get("topic");
        String anything = run.get("anything");
        Producer producer = run.producer(topic, anything);
        // Refused by the client itself where the route does not name the type.
        producer.send(Run.to(anything, "urgent").setPriority(3).build());
        run.say("anything goes");
        for (int priority : new int[] {2, 6, 1, 4}) {
            for (int n = 0; n < 2; n++) {
                run.sent(producer, Run.to(topic, "p" + priority + " " + n).setPriority(priority), "priority", priority);
            }
        }
        SimpleConsumer consumer = run.simple(run.get("group"), Map.of(topic, Run.ALL), 3);
        List<MessageView> found = new ArrayList<>();
        while (found.size() < 8) {
            List<MessageView> messages = run.receiveUntil(consumer, 1, 1, Run.HOLD_S, true, "one by one");
            if (messages.isEmpty()) {
                return;
            }
            found.addAll(messages);
            for (MessageView message : messages) {
                run.say("urgent", "body", Run.text(message), "priority", message.getPriority().orElse(-1));
            }
        }
        run.quiet(consumer);
    }
}
