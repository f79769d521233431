package popgate.classic;

import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import java.util.function.Predicate;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListener;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** One run of one scenario: its parameters, its clients, its voice. */
final class Run {
    /** How long a scenario waits for something that must come, in nanoseconds. */
    static final long PATIENCE = 250_000_000_000L;
    /** A client repeats a send that is not answered in time (as shipped 3 s), and then there are two messages. */
    static final int REQUEST_MS = 20_000;

    private static final Pattern MAPPED = Pattern.compile("\"mapped\"\\s*:\\s*true");
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final AtomicInteger CLIENTS = new AtomicInteger();

    final String nameServer;
    private final String id;
    private final Map<String, String> parameters;
    private final Deque<Runnable> closers = new ArrayDeque<>();

    /** Something that may throw what it likes. */
    interface Action {
        void run() throws Exception;
    }

    Run(String id, String nameServer, Map<String, String> parameters) {
        this.id = id;
        this.nameServer = parameters.getOrDefault("name_server", nameServer);
        this.parameters = parameters;
    }

    String get(String name) {
        return parameters.get(name);
    }

    // telling

    void say(String fact, Object... pairs) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("run", id);
        line.put("fact", fact);
        line.put("at", System.currentTimeMillis());
        for (int i = 0; i < pairs.length; i += 2) {
            line.put(pairs[i].toString(), pairs[i + 1]);
        }
        String text = Json.write(line);
        synchronized (OUT) {
            OUT.println(text);
        }
    }

    /** An error as a fact: its class, its response code (empty: the client's own), its text. */
    static Map<String, Object> errorFacts(Throwable error) {
        String code = "";
        List<String> texts = new ArrayList<>();
        for (Throwable link = error; link != null; link = link.getCause()) {
            texts.add(String.valueOf(link.getMessage()));
            if (code.isEmpty() && link instanceof MQBrokerException broker) {
                code = String.valueOf(broker.getResponseCode());
            }
        }
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("type", error.getClass().getSimpleName());
        facts.put("code", code);
        facts.put("text", String.join(" <- ", texts));
        return facts;
    }

    void crashed(Throwable error) {
        StringWriter trace = new StringWriter();
        error.printStackTrace(new PrintWriter(trace));
        say("crash", "error", errorFacts(error), "trace", trace.toString());
    }

    void saw(MessageExt message, String by, Object... pairs) {
        List<Object> data = new ArrayList<>(bodyFacts(message.getBody()));
        data.addAll(List.of("by", by, "id", message.getMsgId(), "topic", message.getTopic()));
        data.addAll(List.of("tag", String.valueOf(message.getTags()), "keys", String.valueOf(message.getKeys())));
        data.addAll(List.of("properties", message.getProperties(), "attempt", message.getReconsumeTimes() + 1));
        data.addAll(List.of("queue", message.getQueueId(), "offset", message.getQueueOffset()));
        data.addAll(List.of("born", message.getBornTimestamp(), "stored", message.getStoreTimestamp()));
        data.addAll(List.of("flag", message.getFlag(), "bits", message.getSysFlag()));
        data.addAll(Arrays.asList(pairs));
        say("received", data.toArray());
    }

    SendResult sent(Message message, SendResult result, Object... pairs) {
        List<Object> data = new ArrayList<>(bodyFacts(message.getBody()));
        data.addAll(List.of("id", result.getMsgId(), "topic", message.getTopic()));
        data.addAll(List.of("offset_id", String.valueOf(result.getOffsetMsgId()), "status", result.getSendStatus()));
        data.addAll(List.of("queue", result.getMessageQueue().getQueueId(), "offset", result.getQueueOffset()));
        data.addAll(Arrays.asList(pairs));
        say("sent", data.toArray());
        return result;
    }

    /** Do something that may be refused: tells `done` or `refused` with the error. */
    void tryTo(String step, Action action) {
        try {
            action.run();
            say("done", "step", step);
        } catch (Exception error) {
            say("refused", "step", step, "error", errorFacts(error));
        }
    }

    static List<Object> bodyFacts(byte[] body) {
        try {
            String digest = HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(body));
            String text = body.length <= 200 ? new String(body, StandardCharsets.UTF_8) : "";
            return List.of("size", body.length, "sha256", digest, "body", text);
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }

    static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static Message to(String topic, String body) {
        return new Message(topic, body.getBytes(StandardCharsets.UTF_8));
    }

    static Message to(String topic, String tag, String body) {
        return new Message(topic, tag, body.getBytes(StandardCharsets.UTF_8));
    }

    // clients

    /** Names the client, so that each has connections of its own, and where it finds brokers. */
    <T extends ClientConfig> T configured(T client) {
        client.setNamesrvAddr(nameServer);
        // Replies go by it: no other process has one like it.
        client.setInstanceName(get("producers") + "-" + CLIENTS.incrementAndGet());
        client.setVipChannelEnabled(false);
        patient(client);
        return client;
    }

    /** Let it wait for whatever it asks, where it can be told: as shipped 3 s, which is little at its start. */
    static void patient(ClientConfig client) {
        try {
            ClientConfig.class.getMethod("setMqClientApiTimeout", int.class).invoke(client, REQUEST_MS);
        } catch (NoSuchMethodException older) {
            return;
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Routes, positions and messages are asked for in a way that has a time of its own, 6 s as shipped. */
    static void asksPatiently(Object client) {
        try {
            for (Field field : client.getClass().getDeclaredFields()) {
                if (field.getType() == MQClientInstance.class) {
                    field.setAccessible(true);
                    ((MQClientInstance) field.get(client)).getMQAdminImpl().setTimeoutMillis(REQUEST_MS);
                }
            }
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    DefaultMQProducer producer() throws MQClientException {
        DefaultMQProducer producer = configured(new DefaultMQProducer(get("producers")));
        started(producer);
        return producer;
    }

    /** The first client loads all classes, which takes longer than clients as shipped wait for anything. */
    void warmUp() throws MQClientException {
        DefaultMQProducer producer = configured(new DefaultMQProducer("warm-up"));
        producer.start();
        reached(producer, "warm-up");
        producer.shutdown();
    }

    /** Wait until a name server has answered the producer, whether it knows the topic or not. */
    private void reached(DefaultMQProducer producer, String topic) {
        waitFor(() -> {
            try {
                producer.fetchPublishMessageQueues(topic);
                return true;
            } catch (MQClientException error) {
                return error.getCause() instanceof MQClientException;
            }
        });
    }

    TransactionMQProducer transacting(TransactionListener listener) throws MQClientException {
        TransactionMQProducer producer = configured(new TransactionMQProducer(get("producers")));
        producer.setTransactionListener(listener);
        started(producer);
        return producer;
    }

    @SuppressWarnings("deprecation") // what is behind a producer is nobody's business, mostly
    private void started(DefaultMQProducer producer) throws MQClientException {
        producer.setSendMsgTimeout(REQUEST_MS);
        producer.start();
        asksPatiently(producer.getDefaultMQProducerImpl());
        reached(producer, "warm-up");
        atTheEnd(producer::shutdown);
    }

    /** A push consumer that is not started: it reads a new topic from its beginning. */
    DefaultMQPushConsumer unstarted(String group) {
        DefaultMQPushConsumer consumer = configured(new DefaultMQPushConsumer(group));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        return consumer;
    }

    DefaultMQPushConsumer push(String group, String topic, String tags, MessageListener listener)
            throws MQClientException {
        DefaultMQPushConsumer consumer = unstarted(group);
        consumer.subscribe(topic, tags);
        return started(consumer, listener);
    }

    DefaultMQPushConsumer push(String group, String topic, MessageSelector selector, MessageListener listener)
            throws MQClientException {
        DefaultMQPushConsumer consumer = unstarted(group);
        consumer.subscribe(topic, selector);
        return started(consumer, listener);
    }

    DefaultMQPushConsumer started(DefaultMQPushConsumer consumer, MessageListener listener) throws MQClientException {
        if (listener instanceof MessageListenerOrderly orderly) {
            consumer.registerMessageListener(orderly);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) listener);
        }
        consumer.start();
        atTheEnd(consumer::shutdown);
        if (get("mapped") != null && listener instanceof MessageListenerConcurrently) {
            if (!untilMapped(consumer.getConsumerGroup(), true)) {
                throw new IllegalStateException("the group is not mapped");
            }
        }
        return consumer;
    }

    /** Wait until the gateway says of the group that it is mapped onto pop, or that it is on true pull. */
    boolean untilMapped(String group, boolean mapped) {
        boolean so = waitFor(() -> isMapped(group) == mapped);
        say(mapped ? "mapped" : "pulled", "group", group, "so", so);
        return so;
    }

    /** As the admin port tells it: its pages are flat enough to be searched. */
    private boolean isMapped(String group) {
        try (InputStream page = URI.create(get("mapped") + "/api/groups/" + group).toURL().openStream()) {
            String text = new String(page.readAllBytes(), StandardCharsets.UTF_8);
            return MAPPED.matcher(text).find();
        } catch (IOException notNow) {
            return false;
        }
    }

    /** Its class has another name in every other version. */
    static void broadcasting(DefaultMQPushConsumer consumer) throws ReflectiveOperationException {
        for (var method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                Class<?> model = method.getParameterTypes()[0];
                method.invoke(consumer, model.getMethod("valueOf", String.class).invoke(null, "BROADCASTING"));
            }
        }
    }

    /** Call a setter that not every version has: false where this one has it not. */
    static boolean set(Object client, String setter, String value) throws ReflectiveOperationException {
        for (var method : client.getClass().getMethods()) {
            if (method.getName().equals(setter) && method.getParameterTypes()[0].isEnum()) {
                Class<?> type = method.getParameterTypes()[0];
                try {
                    method.invoke(client, type.getMethod("valueOf", String.class).invoke(null, value));
                } catch (InvocationTargetException unknown) {
                    return false;
                }
                return true;
            }
        }
        return false;
    }

    /** A listener that tells of what it gets and consumes it, and remembers the bodies. */
    MessageListenerConcurrently collecting(Set<String> bodies, String by) {
        return consuming(message -> {
            saw(message, by);
            bodies.add(text(message));
            return true;
        });
    }

    static MessageListenerConcurrently consuming(Predicate<MessageExt> consume) {
        return (messages, context) -> {
            boolean good = true;
            for (MessageExt message : messages) {
                good &= consume.test(message);
            }
            return good ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        };
    }

    static Set<String> newSet() {
        return ConcurrentHashMap.newKeySet();
    }

    void atTheEnd(Runnable close) {
        synchronized (closers) {
            closers.push(close);
        }
    }

    void closeAll() {
        synchronized (closers) {
            closers.forEach(Runnable::run);
        }
    }

    // waiting

    /** Wait until it is so; false, and a fact, when patience ends first. */
    boolean waitFor(BooleanSupplier condition) {
        long deadline = System.nanoTime() + PATIENCE;
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > deadline) {
                say("gave up waiting");
                return false;
            }
            rest(20);
        }
        return true;
    }

    static void rest(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }
}
