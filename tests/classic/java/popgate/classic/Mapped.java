package popgate.classic;

import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RemotingClient;

/** What differs for a group whose messages, not queues, are shared. */
final class Mapped {
    /** What a member that hangs may hold of a queue. */
    private static final int WINDOW = 32;

    private Mapped() {}

    /** Both members get something of one and the same queue; when one leaves, the other gets everything. */
    static void shared(Run run) throws Exception {
        String topic = run.get("topic");
        String group = run.get("group");
        DefaultMQProducer producer = run.producer();
        MessageQueue queue = Scenarios.queuesOf(producer, topic).get(0);
        List<Set<String>> seen = List.of(Run.newSet(), Run.newSet());
        DefaultMQPushConsumer one = run.push(group, topic, "*", run.collecting(seen.get(0), "one"));
        run.push(group, topic, "*", run.collecting(seen.get(1), "two"));
        int sent = 0;
        long deadline = System.nanoTime() + Run.PATIENCE;
        while ((seen.get(0).isEmpty() || seen.get(1).isEmpty()) && System.nanoTime() < deadline) {
            for (int n = 0; n < 8; n++) {
                Message message = Run.to(topic, "both " + sent++);
                run.sent(message, producer.send(message, queue));
            }
            int all = sent;
            run.waitFor(() -> seen.get(0).size() + seen.get(1).size() >= all);
        }
        one.shutdown();
        run.say("one left");
        for (int n = 0; n < 8; n++) {
            Message message = Run.to(topic, "alone " + n);
            run.sent(message, producer.send(message, queue));
        }
        run.waitFor(() -> seen.get(1).stream().filter(body -> body.startsWith("alone")).count() >= 8);
    }

    @SuppressWarnings("deprecation") // nothing else tells which queues it has
    private static long queuesOf(DefaultMQPushConsumer consumer, String topic) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
                .filter(queue -> queue.getTopic().equals(topic))
                .count();
    }

    /** Whether it holds no message. */
    @SuppressWarnings("deprecation") // nothing else tells what it has in hand
    static boolean isIdle(DefaultMQPushConsumer consumer) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().values().stream()
                .allMatch(queue -> queue.getMsgCount().get() == 0);
    }

    /** Whatever interrupts it, until it is let go. */
    static void hang(CountDownLatch letGo) {
        while (letGo.getCount() > 0) {
            try {
                letGo.await();
            } catch (InterruptedException whoWantsToStop) {
                continue;
            }
        }
    }

    /** One of four members hangs. What the others did not get then is told twice, with more sent in between. */
    static void stuck(Run run) throws Exception {
        String topic = run.get("topic");
        String group = run.get("group");
        boolean mapped = run.get("mapped") != null;
        DefaultMQProducer producer = run.producer();
        List<MessageQueue> queues = Scenarios.queuesOf(producer, topic);
        Set<String> seen = Run.newSet();
        CountDownLatch letGo = new CountDownLatch(1);
        AtomicBoolean hung = new AtomicBoolean();
        DefaultMQPushConsumer hanging = run.push(group, topic, "*", (MessageListenerConcurrently) (messages, context) -> {
            hung.set(true);
            // No interrupt wakes it: whoever wakes in a shutdown of a client 5.x counts as done without being sent back.
            hang(letGo);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        List<DefaultMQPushConsumer> members = new ArrayList<>(List.of(hanging));
        for (int n = 0; n < 3; n++) {
            members.add(run.push(group, topic, "*", Run.consuming(message -> seen.add(Run.text(message)) || true)));
        }
        // On true pull each has a queue of its own once it knows of all others; until then two may read the same one.
        run.waitFor(() -> mapped || members.stream().allMatch(member -> queuesOf(member, topic) == 1));
        int sent = 0;
        long deadline = System.nanoTime() + Run.PATIENCE;
        while (!hung.get() && System.nanoTime() < deadline) {
            for (MessageQueue queue : queues) {
                producer.send(Run.to(topic, String.valueOf(sent++)), queue);
            }
            Run.rest(20);
        }
        if (run.get("rate") != null) {
            load(run, producer, queues, seen, sent);
            letGo.countDown();
            return;
        }
        for (int step = 1; step <= 2; step++) {
            for (int n = 0; n < 400; n++) {
                Message message = Run.to(topic, String.valueOf(sent++));
                producer.send(message, queues.get(n % queues.size()));
            }
            int reach = mapped ? sent - WINDOW * queues.size() : sent - sent / queues.size();
            run.waitFor(() -> seen.size() >= reach);
            if (!mapped) {
                Run.rest(1_000); // what else there is would come
            }
            run.say("missing", "step", step, "sent", sent, "missing", sent - seen.size(), "hangs", hung.get());
        }
        hanging.shutdown();
        letGo.countDown();
        int all = sent;
        run.waitFor(() -> seen.size() >= all);
        run.say("after it left", "missing", sent - seen.size());
    }

    /** For a plot: sends evenly for a while, and tells what is sent and what is missing as it goes on. */
    private static void load(
            Run run, DefaultMQProducer producer, List<MessageQueue> queues, Set<String> seen, int before)
            throws Exception {
        Random random = new Random(Long.parseLong(run.get("seed")));
        long rate = Long.parseLong(run.get("rate"));
        long total = rate * Long.parseLong(run.get("seconds"));
        long began = System.nanoTime();
        for (int n = 0; n < total; n++) {
            long due = began + n * 1_000_000_000L / rate;
            while (System.nanoTime() < due) {
                Run.rest(1);
            }
            producer.send(Run.to(run.get("topic"), String.valueOf(before + n)),
                    queues.get(random.nextInt(queues.size())));
            if (n % (rate / 10) == 0 || n == total - 1) {
                run.say("level", "ms", (System.nanoTime() - began) / 1_000_000, "sent", before + n + 1,
                        "missing", before + n + 1 - seen.size());
            }
        }
    }

    /**
     * A listener fails when its message is not its own any more: the connection broke meanwhile, and somebody got
     * the message again and finished it.
     */
    static void lateSendBack(Run run) throws Exception {
        String topic = run.get("topic");
        DefaultMQProducer producer = run.producer();
        AtomicInteger deliveries = new AtomicInteger();
        CountDownLatch again = new CountDownLatch(2);
        DefaultMQPushConsumer consumer = run.unstarted(run.get("group"));
        consumer.subscribe(topic, "*");
        run.started(consumer, (MessageListenerConcurrently) (messages, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            run.saw(messages.get(0), "");
            again.countDown();
            if (deliveries.incrementAndGet() > 1) {
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
            try {
                cut(consumer);
                run.say("cut", "again", again.await(Run.PATIENCE, TimeUnit.NANOSECONDS));
                Thread.sleep(6_000); // commits are told every 5 s
            } catch (Exception error) {
                run.crashed(error);
            }
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        Message message = Run.to(topic, "late");
        run.sent(message, producer.send(message));
        run.waitFor(() -> deliveries.get() >= 3);
    }

    /** Break all connections of a client. */
    @SuppressWarnings("deprecation") // its connections are nobody's business
    private static void cut(DefaultMQPushConsumer consumer) throws ReflectiveOperationException {
        MQClientInstance client = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory();
        RemotingClient remoting = client.getMQClientAPIImpl().getRemotingClient();
        var field = remoting.getClass().getDeclaredField("channelTables");
        field.setAccessible(true);
        for (Object wrapper : new ArrayList<>(((ConcurrentMap<?, ?>) field.get(remoting)).values())) {
            for (var method : wrapper.getClass().getDeclaredMethods()) {
                if (method.getName().equals("getChannel")) {
                    method.setAccessible(true);
                    ((io.netty.channel.Channel) method.invoke(wrapper)).close();
                }
            }
        }
    }

    /** A member that is connected to the brokers themselves joins and leaves, twice, while messages are sent. */
    static void switches(Run run) throws Exception {
        String topic = run.get("topic");
        String group = run.get("group");
        DefaultMQProducer producer = run.producer();
        ConcurrentMap<String, Queue<Came>> seen = new ConcurrentHashMap<>();
        AtomicInteger direct = new AtomicInteger();
        for (int n = 0; n < 2; n++) {
            String name = "member " + n;
            run.push(group, topic, "*", Run.consuming(message -> came(seen, message, name)));
        }
        AtomicBoolean over = new AtomicBoolean();
        AtomicInteger sent = new AtomicInteger();
        Thread load = new Thread(() -> {
            while (!over.get()) {
                String body = String.valueOf(sent.get());
                try {
                    producer.send(Run.to(topic, body));
                    sent.incrementAndGet();
                } catch (Exception again) {
                    run.say("sent again", "error", Run.errorFacts(again));
                }
                Run.rest(5);
            }
        });
        load.setDaemon(true);
        load.start();
        for (int round = 0; round < 2; round++) {
            DefaultMQPushConsumer joins = run.unstarted(group);
            joins.setNamesrvAddr(run.get("straight"));
            joins.subscribe(topic, "*");
            String name = "direct " + round;
            joins.registerMessageListener(Run.consuming(message -> {
                direct.incrementAndGet();
                return came(seen, message, name);
            }));
            run.say("joins");
            joins.start();
            run.untilMapped(group, false);
            int before = direct.get();
            run.waitFor(() -> direct.get() > before);
            run.say("leaves");
            joins.shutdown();
            run.untilMapped(group, true);
            int now = sent.get();
            run.waitFor(() -> sent.get() > now + 50);
        }
        over.set(true);
        load.join();
        run.waitFor(() -> seen.size() >= sent.get());
        seen.values().stream().filter(deliveries -> deliveries.size() > 1)
                .forEach(deliveries -> deliveries.forEach(one -> run.say("again", "body", one.body, "by", one.by,
                        "queue", one.queue, "offset", one.offset, "attempt", one.attempt, "retry", one.retry,
                        "id", one.id, "when", one.when)));
        run.say("switched", "sent", sent.get(), "came", seen.size(), "direct", direct.get(),
                "deliveries", seen.values().stream().mapToInt(Queue::size).sum());
    }

    /** A delivery: to whom, from where, whether through a retry topic, and when in milliseconds. */
    private record Came(
            String body, String by, int queue, long offset, int attempt, boolean retry, String id, long when) {}

    private static boolean came(ConcurrentMap<String, Queue<Came>> seen, MessageExt message, String by) {
        String body = Run.text(message);
        seen.computeIfAbsent(body, nothing -> new ConcurrentLinkedQueue<>()).add(new Came(
                body, by, message.getQueueId(), message.getQueueOffset(),
                message.getReconsumeTimes() + 1, message.getProperty("RETRY_TOPIC") != null, message.getMsgId(),
                System.currentTimeMillis()));
        return true;
    }
}
