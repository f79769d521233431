package popgate.classic;

import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** Sends and consumes on and on, while things happen to the topic, until a message says {@code stop}. */
final class Growing {
    private static final long PAUSE_MS = 50;

    private Growing() {}

    /** {@code Growing TOPIC GROUP ADDRESS}: the last is where it connects to. */
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[0];
        Run run = new Run("growing", arguments[2], Map.of("producers", arguments[1] + "-producers"));
        try {
            Set<String> seen = Run.newSet();
            DefaultMQProducer producer = run.producer();
            run.push(arguments[1], topic, "*", run.collecting(seen, "one"));
            Set<String> sent = new HashSet<>();
            for (int n = 0; !seen.contains("stop"); n++) {
                Message message = Run.to(topic, "message " + n);
                try {
                    run.sent(message, producer.send(message));
                    sent.add(Run.text(message));
                } catch (Exception error) {
                    run.say("unsent", "error", Run.errorFacts(error));
                }
                Run.rest(PAUSE_MS);
            }
            run.waitFor(() -> seen.containsAll(sent));
            run.closeAll();
            run.say("end");
        } catch (Throwable error) {
            run.crashed(error);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
