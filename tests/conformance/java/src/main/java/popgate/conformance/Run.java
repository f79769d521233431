package popgate.conformance;

import apache.rocketmq.v2.Code;
import java.io.Closeable;
import java.io.IOException;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Semaphore;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.shaded.io.grpc.StatusRuntimeException;

/** One run of one scenario: its parameters, its clients, its voice. */
final class Run {
    /**
     * How many seconds a consumer holds what it acknowledges. Longer than any scenario: when the time is over a
     * RocketMQ that stood still gives out again what was acknowledged in time, before it reads that it was.
     */
    static final int HOLD_S = 600;

    /** How long a scenario waits for something that must come. */
    static final Duration PATIENCE = Duration.ofSeconds(240);
    /** A client repeats a send that is not answered in time (as shipped 3 s); not every broker knows repeats. */
    static final Duration REQUEST = Duration.ofSeconds(45);

    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final FilterExpression ALL = FilterExpression.SUB_ALL;

    private static final Pattern CODE = Pattern.compile("response-code=(\\d+)");
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    final Semaphore go = new Semaphore(0);
    final String endpoint;
    private final String id;
    private final Map<String, String> parameters;
    private final Deque<Closeable> clients = new ArrayDeque<>();

    /** Something that may throw what it likes. */
    interface Action {
        void run() throws Exception;
    }

    Run(String id, String endpoint, Map<String, String> parameters) {
        this.id = id;
        this.endpoint = endpoint;
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

    /** An error as a fact: its class, the name of its status code (empty: the client's own), its text. */
    static Map<String, Object> errorFacts(Throwable error) {
        Throwable cause = error;
        while ((cause instanceof CompletionException || cause instanceof ExecutionException) && cause.getCause() != null) {
            cause = cause.getCause();
        }
        String code = "";
        for (Throwable link = cause; link != null && code.isEmpty(); link = link.getCause()) {
            String text = String.valueOf(link.getMessage());
            Matcher matcher = CODE.matcher(text);
            if (link instanceof ClientException && matcher.find()) {
                Code known = Code.forNumber(Integer.parseInt(matcher.group(1)));
                code = known == null ? matcher.group(1) : known.name();
            } else if (link instanceof StatusRuntimeException status) {
                code = "GRPC_" + status.getStatus().getCode();
            }
        }
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("type", cause.getClass().getSimpleName());
        facts.put("code", code);
        List<String> texts = new ArrayList<>();
        for (Throwable link = cause; link != null; link = link.getCause()) {
            texts.add(String.valueOf(link.getMessage()));
        }
        facts.put("text", String.join(" <- ", texts));
        return facts;
    }

    void crashed(Throwable error) {
        StringWriter trace = new StringWriter();
        error.printStackTrace(new PrintWriter(trace));
        say("crash", "error", errorFacts(error), "trace", trace.toString());
    }

    void saw(MessageView message, String by, Object... pairs) {
        List<Object> data = new ArrayList<>(bodyFacts(message.getBody()));
        data.addAll(List.of("by", by, "id", message.getMessageId().toString(), "topic", message.getTopic()));
        data.addAll(List.of("tag", message.getTag().orElse(""), "keys", message.getKeys().stream().sorted().toList()));
        data.addAll(List.of("properties", message.getProperties(), "group", message.getMessageGroup().orElse("")));
        data.addAll(List.of("attempt", message.getDeliveryAttempt(), "corrupted", false));
        data.addAll(List.of(pairs));
        say("received", data.toArray());
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

    static List<Object> bodyFacts(ByteBuffer body) {
        byte[] bytes = new byte[body.remaining()];
        body.duplicate().get(bytes);
        try {
            String digest = HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
            String text = bytes.length <= 200 ? new String(bytes, StandardCharsets.UTF_8) : "";
            return List.of("size", bytes.length, "sha256", digest, "body", text);
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }

    static String text(MessageView message) {
        ByteBuffer body = message.getBody();
        return StandardCharsets.UTF_8.decode(body.duplicate()).toString();
    }

    // clients

    ClientConfiguration configuration(String where) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
                .setEndpoints(where).setRequestTimeout(REQUEST);
        try {
            builder.enableSsl(parameters.containsKey("tls"));
        } catch (NoSuchMethodError error) {
            say("always TLS"); // the oldest version leaves no choice
        }
        return builder.build();
    }

    Producer producer(String... topics) throws ClientException {
        return producerAt(endpoint, null, topics);
    }

    Producer checkedProducer(Function<MessageView, TransactionResolution> check, String... topics)
            throws ClientException {
        return producerAt(endpoint, check, topics);
    }

    Producer producerAt(String where, Function<MessageView, TransactionResolution> check, String... topics)
            throws ClientException {
        ProducerBuilder builder = PROVIDER.newProducerBuilder().setClientConfiguration(configuration(where));
        builder.setTopics(topics);
        if (check != null) {
            builder.setTransactionChecker(check::apply);
        }
        return kept(builder.build());
    }

    SimpleConsumer simple(String group, Map<String, FilterExpression> topics, int awaitSeconds)
            throws ClientException {
        return simpleAt(endpoint, group, topics, awaitSeconds);
    }

    SimpleConsumer simpleAt(String where, String group, Map<String, FilterExpression> topics, int awaitSeconds)
            throws ClientException {
        int shortest = Integer.parseInt(parameters.getOrDefault("shortest_poll_s", "0")); // RocketMQ's own proxy: 5
        return kept(PROVIDER.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration(where))
                .setConsumerGroup(group)
                .setSubscriptionExpressions(topics)
                .setAwaitDuration(Duration.ofSeconds(Math.max(awaitSeconds, shortest)))
                .build());
    }

    PushConsumer push(String group, Map<String, FilterExpression> topics, Predicate<MessageView> consume, int cached)
            throws ClientException {
        return kept(PROVIDER.newPushConsumerBuilder()
                .setClientConfiguration(configuration(endpoint))
                .setConsumerGroup(group)
                .setSubscriptionExpressions(topics)
                .setMaxCacheMessageCount(cached)
                .setMessageListener(message -> consume.test(message) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE)
                .build());
    }

    PushConsumer push(String group, Map<String, FilterExpression> topics, Predicate<MessageView> consume)
            throws ClientException {
        return push(group, topics, consume, 1024);
    }

    LitePushConsumer lite(String group, String topic, MessageListener listener) throws ClientException {
        return kept(PROVIDER.newLitePushConsumerBuilder()
                .bindTopic(topic)
                .setClientConfiguration(configuration(endpoint))
                .setConsumerGroup(group)
                .setMessageListener(listener)
                .build());
    }

    private <T extends Closeable> T kept(T client) {
        synchronized (clients) {
            clients.push(client);
        }
        return client;
    }

    void close(Closeable client) throws IOException {
        synchronized (clients) {
            clients.remove(client);
        }
        client.close();
    }

    void closeAll() {
        while (!clients.isEmpty()) {
            Closeable client = clients.pop();
            try {
                client.close();
            } catch (Exception error) {
                say("not closed", "client", client.getClass().getSimpleName(), "error", errorFacts(error));
            }
        }
    }

    // doing

    static FilterExpression tags(String expression) {
        return new FilterExpression(expression, FilterExpressionType.TAG);
    }

    static FilterExpression sql(String expression) {
        return new FilterExpression(expression, FilterExpressionType.SQL92);
    }

    static MessageBuilder to(String topic, String body) {
        return to(topic, body.getBytes(StandardCharsets.UTF_8));
    }

    static MessageBuilder to(String topic, byte[] body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body);
    }

    /** Send and tell the receipt. */
    SendReceipt sent(Producer producer, MessageBuilder builder, Object... pairs) throws ClientException {
        Message message = builder.build();
        return sentAs(message, producer.send(message), pairs);
    }

    SendReceipt sentHalf(Producer producer, MessageBuilder builder, Transaction transaction) throws ClientException {
        Message message = builder.build();
        return sentAs(message, producer.send(message, transaction));
    }

    SendReceipt sentAs(Message message, SendReceipt receipt, Object... pairs) {
        List<Object> data = new ArrayList<>(bodyFacts(message.getBody()));
        data.addAll(List.of("id", receipt.getMessageId().toString(), "group", message.getMessageGroup().orElse("")));
        data.addAll(List.of("recall", recallHandle(receipt)));
        data.addAll(List.of(pairs));
        say("sent", data.toArray());
        return receipt;
    }

    private static String recallHandle(SendReceipt receipt) {
        try {
            return String.valueOf(receipt.getRecallHandle());
        } catch (NoSuchMethodError error) {
            return ""; // this runs with the oldest version of the client, which knows no recall
        }
    }

    List<MessageView> receive(SimpleConsumer consumer, int maximum, int invisibleSeconds, String by)
            throws ClientException {
        List<MessageView> messages = consumer.receive(maximum, Duration.ofSeconds(invisibleSeconds));
        say("batch", "by", by, "count", messages.size());
        for (MessageView message : messages) {
            saw(message, by);
        }
        return messages;
    }

    void acked(SimpleConsumer consumer, MessageView message) throws ClientException {
        consumer.ack(message);
        say("acked", "id", message.getMessageId().toString(), "attempt", message.getDeliveryAttempt());
    }

    List<MessageView> receiveUntil(SimpleConsumer consumer, int count, String by) throws ClientException {
        return receiveUntil(consumer, count, 16, HOLD_S, true, by);
    }

    /** Receive `count` messages, acknowledging each if told so; fewer when patience ends. */
    List<MessageView> receiveUntil(
            SimpleConsumer consumer, int count, int maximum, int invisibleSeconds, boolean ack, String by)
            throws ClientException {
        List<MessageView> found = new ArrayList<>();
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (found.size() < count && System.nanoTime() < deadline) {
            for (MessageView message : receive(consumer, maximum, invisibleSeconds, by)) {
                found.add(message);
                if (ack) {
                    acked(consumer, message);
                }
            }
        }
        return found;
    }

    void quiet(SimpleConsumer consumer) throws ClientException {
        quiet(consumer, 0, "quiet");
    }

    /** Receive once more, and on until a wall time: what comes is told under `by`, and it should not. */
    void quiet(SimpleConsumer consumer, long untilMillis, String by) throws ClientException {
        do {
            for (MessageView message : receive(consumer, 16, HOLD_S, by)) {
                acked(consumer, message);
            }
        } while (System.currentTimeMillis() < untilMillis);
    }

    /** Wait until it is so; false, and a fact, when patience ends first. */
    boolean waitFor(BooleanSupplier condition) {
        long deadline = System.nanoTime() + PATIENCE.toNanos();
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
