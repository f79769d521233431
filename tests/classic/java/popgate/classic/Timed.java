package popgate.classic;

import java.util.List;
import java.util.Set;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** What came with 5.x; it is called by name, for the driver is compiled with an older version. */
final class Timed {
    private Timed() {}

    static void timed(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        long now = System.currentTimeMillis();
        for (String setter : List.of("setDelayTimeSec", "setDelayTimeMs", "setDeliverTimeMs")) {
            long value = switch (setter) {
                case "setDelayTimeSec" -> 2;
                case "setDelayTimeMs" -> 2_500;
                default -> now + 3_000;
            };
            Message message = Run.to(topic, setter);
            Message.class.getMethod(setter, long.class).invoke(message, value);
            run.sent(message, producer.send(message), "due", setter.equals("setDeliverTimeMs") ? value : 0);
        }
        Message recalled = Run.to(topic, "recalled");
        Message.class.getMethod("setDelayTimeSec", long.class).invoke(recalled, 20L);
        SendResult result = run.sent(recalled, producer.send(recalled));
        Object handle = SendResult.class.getMethod("getRecallHandle").invoke(result);
        Object id = DefaultMQProducer.class
                .getMethod("recallMessage", String.class, String.class)
                .invoke(producer, topic, handle);
        run.say("recalled", "id", String.valueOf(id));
        Message last = Run.to(topic, "last");
        Message.class.getMethod("setDelayTimeSec", long.class).invoke(last, 22L);
        run.sent(last, producer.send(last));
        Set<String> bodies = Run.newSet();
        run.push(run.get("group"), topic, "*", run.collecting(bodies, ""));
        run.waitFor(() -> bodies.size() >= 4 && bodies.contains("last"));
    }
}
