package popgate.conformance;

import static popgate.conformance.Run.ALL;
import static popgate.conformance.Run.errorFacts;
import static popgate.conformance.Run.rest;
import static popgate.conformance.Run.sql;
import static popgate.conformance.Run.tags;
import static popgate.conformance.Run.text;
import static popgate.conformance.Run.to;

import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.java.impl.producer.SendReceiptImpl;
import org.apache.rocketmq.client.java.message.MessageViewImpl;
import org.apache.rocketmq.client.java.route.Endpoints;

/** The scenarios, as far as the official Java client's API goes; names and facts are those of `scenarios.py`. */
final class Scenarios {
    /** One scenario. */
    interface Scenario {
        void play(Run run) throws Exception;
    }

    private static final int LIMIT = 4 * 1024 * 1024;
    /** Seconds that a consumer holds what it acknowledges after an interruption: however long that takes, */
    private static final int HOLD_S = 300;
    /** and what comes again after it. */
    private static final int GIVE_BACK_S = 30;
    private static final Map<String, Scenario> ALL_OF_THEM = new HashMap<>();

    static {
        ALL_OF_THEM.put("normal", Scenarios::normal);
        ALL_OF_THEM.put("bodies", Scenarios::bodies);
        ALL_OF_THEM.put("batch_receive", Scenarios::batchReceive);
        ALL_OF_THEM.put("early_receive", Scenarios::earlyReceive);
        ALL_OF_THEM.put("subscriptions", Scenarios::subscriptions);
        ALL_OF_THEM.put("by_name", Scenarios::dialling);
        ALL_OF_THEM.put("by_address", Scenarios::dialling);
        ALL_OF_THEM.put("by_ipv6", Scenarios::dialling);
        ALL_OF_THEM.put("first_use", Scenarios::firstUse);
        ALL_OF_THEM.put("empty_poll", Scenarios::emptyPoll);
        ALL_OF_THEM.put("idle", Scenarios::idle);
        ALL_OF_THEM.put("fifo_simple", Scenarios::fifoSimple);
        ALL_OF_THEM.put("fifo_held", Scenarios::fifoHeld);
        ALL_OF_THEM.put("lite", Light::lite);
        ALL_OF_THEM.put("priority", Light::priority);
        ALL_OF_THEM.put("fifo_push", Scenarios::fifoPush);
        ALL_OF_THEM.put("delay", Scenarios::delay);
        ALL_OF_THEM.put("recall", Scenarios::recall);
        ALL_OF_THEM.put("transaction", Scenarios::transaction);
        ALL_OF_THEM.put("transaction_check", Scenarios::transactionCheck);
        ALL_OF_THEM.put("transaction_unnamed", Scenarios::transactionUnnamed);
        ALL_OF_THEM.put("transaction_abandon", Scenarios::transactionAbandon);
        ALL_OF_THEM.put("transaction_successor", Scenarios::transactionSuccessor);
        ALL_OF_THEM.put("tags", Scenarios::tagFilters);
        ALL_OF_THEM.put("sql92", Scenarios::sql92);
        ALL_OF_THEM.put("redelivery", Scenarios::redelivery);
        ALL_OF_THEM.put("change_invisible", Scenarios::changeInvisible);
        ALL_OF_THEM.put("nack", Scenarios::nack);
        ALL_OF_THEM.put("push_consumer", Scenarios::pushConsumer);
        ALL_OF_THEM.put("push_shared", Scenarios::pushShared);
        ALL_OF_THEM.put("broadcast", Scenarios::broadcast);
        ALL_OF_THEM.put("push_retry", Scenarios::pushRetry);
        ALL_OF_THEM.put("dead_letter", Scenarios::deadLetter);
        ALL_OF_THEM.put("dead_letter_fifo", Scenarios::deadLetterFifo);
        ALL_OF_THEM.put("many_receives", Scenarios::manyReceives);
        ALL_OF_THEM.put("wrong_type", Scenarios::wrongType);
        ALL_OF_THEM.put("unknown_topic", Scenarios::unknownTopic);
        ALL_OF_THEM.put("unknown_group", Scenarios::unknownGroup);
        ALL_OF_THEM.put("illegal_names", Scenarios::illegalNames);
        ALL_OF_THEM.put("illegal_messages", Scenarios::illegalMessages);
        ALL_OF_THEM.put("illegal_receives", Scenarios::illegalReceives);
        ALL_OF_THEM.put("asked", Scenarios::asked);
        ALL_OF_THEM.put("interrupted", Scenarios::interrupted);
        ALL_OF_THEM.put("drained", Scenarios::drained);
    }

    private Scenarios() {}

    static Scenario named(String name) {
        return ALL_OF_THEM.get(name);
    }

    private static byte[] pattern(int size) {
        byte[] body = new byte[size];
        for (int i = 0; i < size; i++) {
            body[i] = (byte) (i % 251);
        }
        return body;
    }

    private static Map<String, FilterExpression> all(String topic) {
        return new HashMap<>(Map.of(topic, ALL)); // the client keeps the map, and subscribing changes it
    }

    private static String repeat(String text, int times) {
        return text.repeat(times);
    }

    // sending and receiving

    private static void normal(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.producer(topic);
        SimpleConsumer consumer = run.simple(run.get("group"), all(topic), 3);
        run.sent(
                producer,
                to(topic, "hello")
                        .setTag("TagA")
                        .setKeys("k1", "k2")
                        .addProperty("colour", "blue")
                        .addProperty("größe", "übergroß 🐇")
                        .addProperty("spaced key", " a b ")
                        .addProperty(repeat("k", 200), repeat("v", 2000)),
                "label", "full");
        Message later = to(topic, "grüße, 世界 🌍").setTag("标签").setKeys("schlüssel").build();
        run.sentAs(later, producer.sendAsync(later).get(), "label", "async");
        run.sent(producer, to(topic, "bare"), "label", "bare");
        run.receiveUntil(consumer, 3, "");
        run.quiet(consumer);
    }

    private static void bodies(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.producer(topic);
        SimpleConsumer consumer = run.simple(run.get("group"), all(topic), 3);
        for (int size : new int[] {1, 65_536, LIMIT}) {
            run.sent(producer, to(topic, pattern(size)));
        }
        run.tryTo("one byte over", () -> producer.send(to(topic, pattern(LIMIT + 1)).build()));
        run.receiveUntil(consumer, 3, 1, Run.HOLD_S, true, "");
        run.quiet(consumer);
    }

    private static void batchReceive(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.producer(topic);
        SimpleConsumer consumer = run.simple(run.get("group"), all(topic), 3);
        Map<Message, CompletableFuture<SendReceipt>> futures = new LinkedHashMap<>();
        for (int n = 0; n < 80; n++) {
            Message message = to(topic, "m" + n).build();
            futures.put(message, producer.sendAsync(message));
        }
        for (Map.Entry<Message, CompletableFuture<SendReceipt>> entry : futures.entrySet()) {
            run.sentAs(entry.getKey(), entry.getValue().get());
        }
        run.receiveUntil(consumer, 80, 100, Run.HOLD_S, true, "");
        run.quiet(consumer);
    }

    private static void earlyReceive(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.producer(topic);
        for (int n = 0; n < 8; n++) {
            run.sent(producer, to(topic, "m" + n));
            SimpleConsumer consumer = run.simple(run.get("group"), all(topic), 3);
            run.receiveUntil(consumer, 1, "");
            run.close(consumer);
        }
    }

    private static void subscriptions(Run run) throws Exception {
        String one = run.get("topic");
        String two = run.get("topic2");
        Producer producer = run.producer(one, two);
        SimpleConsumer consumer = run.simple(run.get("group"), all(one), 1);
        consumer.subscribe(two, tags("wanted"));
        for (String topic : List.of(one, two)) {
            run.sent(producer, to(topic, topic + " wanted").setTag("wanted"));
            run.sent(producer, to(topic, topic + " other").setTag("other"));
        }
        run.receiveUntil(consumer, 3, "");
        consumer.unsubscribe(one);
        run.say("unsubscribed");
        for (String topic : List.of(one, two)) {
            run.sent(producer, to(topic, topic + " again").setTag("wanted"));
        }
        run.receiveUntil(consumer, 1, "");
        run.quiet(consumer);
    }

    /** The client dials `dial`; every address it is told must be that one. */
    private static void dialling(Run run) throws Exception {
        String topic = run.get("topic");
        String endpoint = run.get("dial");
        Producer producer = run.producerAt(endpoint, null, topic);
        SimpleConsumer consumer = run.simpleAt(endpoint, run.get("group"), all(topic), 3);
        SendReceipt receipt = run.sent(producer, to(topic, "by name"));
        MessageView message = run.receiveUntil(consumer, 1, "").get(0);
        // The one place that looks behind the API: it does not show the addresses it uses.
        for (Endpoints told : List.of(
                ((SendReceiptImpl) receipt).getEndpoints(), ((MessageViewImpl) message).getEndpoints())) {
            run.say("told", "facade", told.getFacade(), "dialled", endpoint);
        }
    }

    /** Topic and group exist for nobody yet; the group is made after the message was sent. */
    private static void firstUse(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.producer();
        run.sent(producer, to(topic, "first"));
        SimpleConsumer consumer = run.simple(run.get("group"), all(topic), 3);
        run.receiveUntil(consumer, 1, "");
        run.quiet(consumer);
    }

    // waiting

    /** A short poll ends while a long one goes on; an arrival ends the long one with its message. */
    private static void emptyPoll(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.producer(topic);
        SimpleConsumer patient = run.simple(run.get("group"), all(topic), 20);
        SimpleConsumer hasty = run.simple(run.get("group"), all(topic), 1);
        CompletableFuture<Void> waiting = CompletableFuture.runAsync(() -> {
            try {
                run.receiveUntil(patient, 1, "patient");
            } catch (ClientException error) {
                throw new IllegalStateException(error);
            }
        });
        run.receive(hasty, 16, 30, "hasty");
        run.receive(hasty, 16, 30, "hasty");
        run.close(hasty);
        run.sent(producer, to(topic, "at last"));
        waiting.get();
    }

    /** Two consumers of a broadcast group, each there before the first message. */
    private static void broadcast(Run run) throws Exception {
        String topic = run.get("topic");
        SimpleConsumer one = run.simple(run.get("group"), all(topic), 1);
        SimpleConsumer two = run.simple(run.get("group"), all(topic), 1);
        run.receive(one, 16, Run.HOLD_S, "one");
        run.receive(two, 16, Run.HOLD_S, "two");
        Producer producer = run.producer(topic);
        for (int n = 0; n < 20; n++) {
            run.sent(producer, to(topic, "m" + n));
        }
        run.receiveUntil(one, 20, "one");
        run.receiveUntil(two, 20, "two");
        run.quiet(one);
        run.quiet(two);
    }

    /** Consumers of both kinds wait longer than one poll on an empty topic, then a message comes. */
    private static void idle(Run run) throws Exception {
        String topic = run.get("topic");
        String pushed = run.get("topic2");
        AtomicBoolean seen = new AtomicBoolean();
        Producer producer = run.producer(topic, pushed);
        SimpleConsumer simple = run.simple(run.get("group"), all(topic), 20);
        run.push(run.get("group2"), all(pushed), message -> {
            run.saw(message, "push");
            seen.set(true);
            return true;
        });
        run.receive(simple, 16, 30, "empty");
        rest(4_000);
        for (String where : List.of(topic, pushed)) {
            run.sent(producer, to(where, "at last"));
        }
        run.receiveUntil(simple, 1, "simple");
        run.waitFor(seen::get);
    }

    // order

    private static void sendInOrder(Run run, Producer producer, String topic, String groups, int count)
            throws ClientException {
        for (int n = 0; n < count; n++) {
            for (String group : groups.split("")) {
                run.sent(producer, to(topic, group + n).setMessageGroup(group));
            }
        }
    }

    private static void fifoSimple(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.producer(topic);
        SimpleConsumer consumer = run.simple(run.get("group"), all(topic), 3);
        sendInOrder(run, producer, topic, "abcde", 8);
        run.receiveUntil(consumer, 40, "");
        run.quiet(consumer);
    }

    /** A held message holds its own message group and no other; when it comes back, order goes on. */
    private static void fifoHeld(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.producer(topic);
        SimpleConsumer consumer = run.simple(run.get("group"), all(topic), 1);
        run.sent(producer, to(topic, "a0").setMessageGroup("a"));
        MessageView held = run.receiveUntil(consumer, 1, 16, 60, false, "first").get(0);
        for (String body : List.of("a1", "b0", "b1")) {
            run.sent(producer, to(topic, body).setMessageGroup(body.substring(0, 1)));
        }
        run.receiveUntil(consumer, 2, "meanwhile");
        run.receiveUntil(consumer, 2, "afterwards");
        run.say("held", "id", held.getMessageId().toString());
        run.quiet(consumer);
    }

    private static void fifoPush(Run run) throws Exception {
        String topic = run.get("topic");
        AtomicInteger finished = new AtomicInteger();
        Set<String> failed = ConcurrentHashMap.newKeySet();
        run.push(run.get("group"), all(topic), message -> {
            String body = text(message);
            boolean good = !Set.of("a2", "c0").contains(body) || !failed.add(body);
            run.saw(message, "", "consumed", good);
            if (good) {
                finished.incrementAndGet();
            }
            return good;
        });
        Producer producer = run.producer(topic);
        sendInOrder(run, producer, topic, "abcd", 8);
        run.waitFor(() -> finished.get() >= 32);
    }

    // time

    private static void delay(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.producer(topic);
        SimpleConsumer consumer = run.simple(run.get("group"), all(topic), 3);
        long base = System.currentTimeMillis();
        Map<String, Long> dues = new LinkedHashMap<>();
        dues.put("later", base + 3_457);
        dues.put("soon", base + 1_234);
        dues.put("past", base - 60_000);
        for (Map.Entry<String, Long> due : dues.entrySet()) {
            run.sent(producer, to(topic, due.getKey()).setDeliveryTimestamp(due.getValue()), "due", due.getValue());
        }
        run.receiveUntil(consumer, 3, "");
        run.quiet(consumer);
    }

    private static void recall(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.producer(topic);
        SimpleConsumer consumer = run.simple(run.get("group"), all(topic), 1);
        long due = System.currentTimeMillis() + 39_500; // until then one of both is recalled
        SendReceipt doomed = run.sent(producer, to(topic, "doomed").setDeliveryTimestamp(due));
        SendReceipt spared = run.sent(producer, to(topic, "spared").setDeliveryTimestamp(due));
        String id = producer.recallMessage(topic, doomed.getRecallHandle()).getMessageId().toString();
        run.say("recalled", "id", id);
        run.receiveUntil(consumer, 1, "");
        run.quiet(consumer, due + 2_000, "quiet");
        run.tryTo("recall again", () -> producer.recallMessage(topic, doomed.getRecallHandle()));
        run.tryTo("recall delivered", () -> producer.recallMessage(topic, spared.getRecallHandle()));
        run.tryTo("recall nonsense", () -> producer.recallMessage(topic, "nonsense"));
    }

    // transactions

    private static void transaction(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.checkedProducer(message -> TransactionResolution.UNKNOWN, topic);
        SimpleConsumer consumer = run.simple(run.get("group"), all(topic), 3);
        Map<String, Transaction> ends = new HashMap<>();
        for (String body : List.of("committed", "rolled back")) {
            ends.put(body, producer.beginTransaction());
            run.sentHalf(producer, to(topic, body).setTag("t").setKeys("k"), ends.get(body));
        }
        run.quiet(consumer, 0, "too early");
        ends.get("rolled back").rollback();
        ends.get("committed").commit();
        run.say("ended");
        run.receiveUntil(consumer, 1, "");
        run.quiet(consumer, System.currentTimeMillis() + 4_000, "quiet");
    }

    private static TransactionResolution toldCheck(Run run, MessageView message) {
        String body = text(message);
        run.say("checked", "id", message.getMessageId().toString(), "body", body, "tag", message.getTag().orElse(""));
        return body.equals("bad") ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
    }

    /** Nobody ends the transactions; the producer is asked and answers. */
    private static void transactionCheck(Run run) throws Exception {
        String topic = run.get("topic");
        Set<String> checked = ConcurrentHashMap.newKeySet();
        Producer producer = run.checkedProducer(
                message -> {
                    TransactionResolution told = toldCheck(run, message);
                    checked.add(text(message));
                    return told;
                },
                topic);
        SimpleConsumer consumer = run.simple(run.get("group"), all(topic), 3);
        for (String body : List.of("good", "bad")) {
            run.sentHalf(producer, to(topic, body).setTag("t"), producer.beginTransaction());
        }
        run.receiveUntil(consumer, 1, "");
        run.waitFor(() -> checked.contains("bad")); // brokers ask about one after the other
        run.quiet(consumer, System.currentTimeMillis() + 10_000, "quiet");
    }

    /** The producer named no topics when it was made. */
    private static void transactionUnnamed(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.checkedProducer(message -> toldCheck(run, message));
        SimpleConsumer consumer = run.simple(run.get("group"), all(topic), 3);
        run.sentHalf(producer, to(topic, "good"), producer.beginTransaction());
        run.receiveUntil(consumer, 1, "");
    }

    /** Sends a half message and dies at once, the whole process of it. */
    private static void transactionAbandon(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.checkedProducer(message -> toldCheck(run, message), topic);
        run.sentHalf(producer, to(topic, "orphan"), producer.beginTransaction());
        Runtime.getRuntime().halt(9);
    }

    /** Another instance of the producer is asked about what a dead one left. */
    private static void transactionSuccessor(Run run) throws Exception {
        String topic = run.get("topic");
        run.checkedProducer(message -> toldCheck(run, message), topic);
        SimpleConsumer consumer = run.simple(run.get("group"), all(topic), 3);
        run.receiveUntil(consumer, 1, "");
    }

    // filters

    private static void tagFilters(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.producer(topic);
        SimpleConsumer some = run.simple(run.get("group"), Map.of(topic, tags("a || c || AaAa")), 3);
        SimpleConsumer every = run.simple(run.get("group2"), Map.of(topic, tags("*")), 3);
        for (String tag : List.of("a", "b", "c", "BBBB")) { // BBBB has the Java hash of AaAa
            run.sent(producer, to(topic, tag).setTag(tag));
        }
        run.sent(producer, to(topic, "none"));
        run.receiveUntil(some, 2, "some");
        run.receiveUntil(every, 5, "every");
        run.quiet(some);
    }

    private static void sql92(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.producer(topic);
        String expression = "(price BETWEEN 10 AND 20 AND colour IN ('red', 'grün')) OR TAGS = 'vip' OR weight IS NOT NULL";
        SimpleConsumer consumer = run.simple(run.get("group"), Map.of(topic, sql(expression)), 3);
        run.sent(producer, to(topic, "yes: red 10").addProperty("price", "10").addProperty("colour", "red"));
        run.sent(producer, to(topic, "yes: grün 20").addProperty("price", "20").addProperty("colour", "grün"));
        run.sent(producer, to(topic, "no: red 21").addProperty("price", "21").addProperty("colour", "red"));
        run.sent(producer, to(topic, "no: blue 15").addProperty("price", "15").addProperty("colour", "blue"));
        run.sent(producer, to(topic, "no: red").addProperty("colour", "red"));
        run.sent(producer, to(topic, "yes: vip").setTag("vip"));
        run.sent(producer, to(topic, "yes: weight").addProperty("weight", "1"));
        run.receiveUntil(consumer, 4, "");
        run.quiet(consumer);
        run.tryTo("illegal expression", () -> {
            SimpleConsumer broken = run.simple(run.get("group2"), Map.of(topic, sql("price >")), 1);
            run.receive(broken, 16, 30, "");
        });
    }

    // attempts

    private static void redelivery(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.producer(topic);
        SimpleConsumer consumer = run.simple(run.get("group"), all(topic), 3);
        run.sent(producer, to(topic, "again"));
        MessageView first = run.receiveUntil(consumer, 1, 16, 10, false, "").get(0);
        MessageView second = run.receiveUntil(consumer, 1, 16, Run.HOLD_S, false, "").get(0);
        run.tryTo("ack by expired handle", () -> consumer.ack(first));
        run.tryTo("change by expired handle", () -> consumer.changeInvisibleDuration(first, Duration.ofSeconds(30)));
        run.acked(consumer, second);
        run.tryTo("ack again", () -> consumer.ack(second));
        run.quiet(consumer);
    }

    private static void change(Run run, SimpleConsumer consumer, MessageView message, int seconds)
            throws ClientException {
        consumer.changeInvisibleDuration(message, Duration.ofSeconds(seconds));
        run.say("changed", "id", message.getMessageId().toString(), "seconds", seconds);
    }

    /** One is held longer than it was received for, the other is given back early. */
    private static void changeInvisible(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.producer(topic);
        SimpleConsumer consumer = run.simple(run.get("group"), all(topic), 1);
        for (String body : List.of("longer", "shorter")) {
            run.sent(producer, to(topic, body));
        }
        Map<String, MessageView> held = new HashMap<>();
        for (MessageView message : run.receiveUntil(consumer, 2, 16, 60, false, "")) {
            held.put(text(message), message);
        }
        long start = System.currentTimeMillis();
        change(run, consumer, held.get("longer"), 300);
        change(run, consumer, held.get("shorter"), 1);
        run.receiveUntil(consumer, 1, "early");
        run.quiet(consumer, start + 61_000, "quiet");
        run.acked(consumer, held.get("longer"));
        run.quiet(consumer);
    }

    /** Negative acknowledgement of a simple consumer: a short invisible time; attempts grow. */
    private static void nack(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.producer(topic);
        SimpleConsumer consumer = run.simple(run.get("group"), all(topic), 3);
        run.sent(producer, to(topic, "no"));
        for (int n = 0; n < 3; n++) {
            for (MessageView message : run.receiveUntil(consumer, 1, 16, 30, false, "")) {
                change(run, consumer, message, 1);
            }
        }
        run.receiveUntil(consumer, 1, "");
        run.quiet(consumer);
    }

    private static void pushConsumer(Run run) throws Exception {
        String topic = run.get("topic");
        Set<String> seen = ConcurrentHashMap.newKeySet();
        run.push(run.get("group"), Map.of(topic, tags("wanted")), message -> {
            run.saw(message, "");
            seen.add(message.getMessageId().toString());
            return true;
        });
        Producer producer = run.producer(topic);
        for (int n = 0; n < 50; n++) {
            run.sent(producer, to(topic, "m" + n).setTag("wanted"));
            run.sent(producer, to(topic, "other" + n).setTag("other"));
        }
        run.waitFor(() -> seen.size() >= 50);
        run.quiet(run.simple(run.get("group"), Map.of(topic, tags("wanted")), 3));
    }

    /** An operator asks for the client's stack, makes it consume a message once more, tells it to reconnect. */
    private static void asked(Run run) throws Exception {
        String topic = run.get("topic");
        String group = run.get("group");
        Set<String> seen = ConcurrentHashMap.newKeySet();
        AtomicInteger count = new AtomicInteger();
        AtomicInteger demands = new AtomicInteger();
        run.push(group, all(topic), message -> {
            int before = text(message).equals("good") ? count.getAndIncrement() : 0;
            String demanded = before == 1 ? "on demand" : "on demand again";
            run.saw(message, before == 0 || before > demands.get() ? "" : demanded);
            seen.add(message.getMessageId().toString());
            return true;
        });
        Producer producer = run.producer(topic);
        run.sent(producer, to(topic, "good"));
        run.waitFor(() -> seen.size() == 1);
        String id = seen.iterator().next();
        String[] mine = new String[1];
        run.waitFor(() -> (mine[0] = listed(run, group)) != null);
        String path = "/api/clients/" + URLEncoder.encode(mine[0], StandardCharsets.UTF_8);
        run.say("stack", "text", answered(run, path + "/stack", "{}", new AtomicInteger()));
        String wanted = "{\"group\": \"" + group + "\", \"topic\": \"" + topic + "\", \"message_id\": \"" + id + "\"}";
        run.say("verified", "text", answered(run, path + "/verify", wanted, demands));
        run.say("reconnected", "text", answered(run, path + "/reconnect", "{}", new AtomicInteger()));
        run.sent(producer, to(topic, "after"));
        run.waitFor(() -> seen.size() == 2);
    }

    /** The consumer of a group; null: a process of the gateway that has it did not answer another one in time. */
    private static String listed(Run run, String group) {
        try {
            String clients = call(run, "GET", "/api/clients", null);
            Pattern wanted = Pattern.compile("\"client_id\": \"([^\"]+)\"[^}]*\"group\": \"" + group + "\"");
            Matcher mine = wanted.matcher(clients);
            return mine.find() ? mine.group(1) : null;
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    /** Asked again when this client, or the process of the gateway that has it, was too busy to answer in time. */
    private static String answered(Run run, String path, String body, AtomicInteger asked) {
        String[] told = new String[1];
        run.waitFor(() -> {
            try {
                asked.incrementAndGet();
                told[0] = call(run, "POST", path, body);
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
            return !told[0].contains("CLIENT_TIMEOUT") && !told[0].contains("CLIENT_NOT_FOUND");
        });
        return told[0];
    }

    private static String call(Run run, String method, String path, String body) throws Exception {
        HttpRequest.BodyPublisher sent = body == null
                ? HttpRequest.BodyPublishers.noBody()
                : HttpRequest.BodyPublishers.ofString(body);
        HttpRequest request = HttpRequest.newBuilder(URI.create(run.get("admin") + path))
                .header("Content-Type", "application/json")
                .method(method, sent)
                .build();
        return HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body();
    }

    /** Two push consumers of one group share a topic: each message once. */
    private static void pushShared(Run run) throws Exception {
        String topic = run.get("topic");
        AtomicInteger seen = new AtomicInteger();
        for (String by : List.of("one", "two")) {
            run.push(run.get("group"), all(topic), message -> {
                run.saw(message, by);
                seen.incrementAndGet();
                return true;
            });
        }
        Producer producer = run.producer(topic);
        for (int n = 0; n < 100; n++) {
            run.sent(producer, to(topic, "m" + n));
        }
        run.waitFor(() -> seen.get() >= 100);
    }

    private static void pushRetry(Run run) throws Exception {
        String topic = run.get("topic");
        AtomicBoolean consumed = new AtomicBoolean();
        run.push(run.get("group"), all(topic), message -> {
            boolean good = message.getDeliveryAttempt() >= 3;
            run.saw(message, "", "consumed", good);
            if (good) {
                consumed.set(true);
            } else if (message.getDeliveryAttempt() == 2) {
                throw new IllegalStateException("a listener that throws has failed as well");
            }
            return good;
        });
        Producer producer = run.producer(topic);
        run.sent(producer, to(topic, "third time lucky"));
        run.waitFor(consumed::get);
        run.quiet(run.simple(run.get("group"), all(topic), 3));
    }

    /** Read the group's dead-letter topic, which exists once the first message is in it. */
    private static void deadLetters(Run run, int count) {
        String dead = "%DLQ%" + run.get("group");
        AtomicInteger found = new AtomicInteger();
        run.waitFor(() -> {
            try {
                SimpleConsumer consumer = run.simple(run.get("group2"), all(dead), 1);
                for (MessageView message : run.receive(consumer, 16, 30, "dead")) {
                    run.acked(consumer, message);
                    found.incrementAndGet();
                }
                run.close(consumer);
            } catch (Exception error) {
                run.say("no dead letters yet", "error", errorFacts(error));
                rest(200);
            }
            return found.get() >= count;
        });
    }

    /** Attempts are used up: the message moves to the dead-letter topic. */
    private static void deadLetter(Run run) throws Exception {
        String topic = run.get("topic");
        AtomicInteger attempts = new AtomicInteger();
        run.push(run.get("group"), all(topic), message -> {
            run.saw(message, "");
            attempts.incrementAndGet();
            return false;
        });
        Producer producer = run.producer(topic);
        run.sent(producer, to(topic, "poison").setTag("t").setKeys("k").addProperty("p", "v"));
        run.waitFor(() -> attempts.get() >= 2);
        deadLetters(run, 1);
        run.quiet(run.simple(run.get("group"), all(topic), 1));
    }

    /** An ordered consumer uses up the attempts by itself and asks for the dead-letter topic. */
    private static void deadLetterFifo(Run run) throws Exception {
        String topic = run.get("topic");
        AtomicInteger consumed = new AtomicInteger();
        Producer producer = run.producer(topic);
        for (String body : List.of("before", "poison", "after")) {
            run.sent(producer, to(topic, body).setMessageGroup("a"));
        }
        run.push(run.get("group"), all(topic), message -> {
            boolean good = !text(message).equals("poison");
            run.saw(message, "", "consumed", good);
            if (good) {
                consumed.incrementAndGet();
            }
            return good;
        });
        run.waitFor(() -> consumed.get() >= 2);
        deadLetters(run, 1);
    }

    /** Many receives in a row, one for each message (demand 40). */
    private static void manyReceives(Run run) throws Exception {
        String topic = run.get("topic");
        Semaphore seen = new Semaphore(0);
        run.push(run.get("group"), all(topic), message -> {
            seen.release();
            return true;
        });
        Producer producer = run.producer(topic);
        int count = 0;
        while (count < 1200) {
            producer.send(to(topic, "m" + count).build());
            if (!seen.tryAcquire(Run.PATIENCE.toSeconds(), TimeUnit.SECONDS)) {
                break;
            }
            count++;
        }
        run.say("counted", "count", count);
    }

    // refusals

    private static void half(Producer producer, String topic) throws ClientException {
        Transaction transaction = producer.beginTransaction();
        producer.send(to(topic, "x").build(), transaction);
        transaction.rollback();
    }

    private static void wrongType(Run run) throws Exception {
        String plain = run.get("topic");
        String ordered = run.get("topic2");
        String several = run.get("topic3");
        Producer producer =
                run.checkedProducer(message -> TransactionResolution.ROLLBACK, plain, ordered, several);
        long due = System.currentTimeMillis() + 1000;
        run.tryTo("FIFO to NORMAL", () -> producer.send(to(plain, "x").setMessageGroup("g").build()));
        run.tryTo("DELAY to NORMAL", () -> producer.send(to(plain, "x").setDeliveryTimestamp(due).build()));
        run.tryTo("TRANSACTION to NORMAL", () -> half(producer, plain));
        run.tryTo("NORMAL to FIFO", () -> producer.send(to(ordered, "x").build()));
        run.tryTo("NORMAL to several", () -> producer.send(to(several, "x").build()));
        run.tryTo("FIFO to several", () -> producer.send(to(several, "x").setMessageGroup("g").build()));
        run.tryTo("DELAY to several", () -> producer.send(to(several, "x").setDeliveryTimestamp(due).build()));
        run.tryTo("TRANSACTION to several", () -> half(producer, several));
    }

    /** Creation is off. */
    private static void unknownTopic(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.producer();
        run.tryTo("send", () -> producer.send(to(topic, "x").build()));
        run.tryTo("receive", () -> run.receive(run.simple(run.get("group"), all(topic), 1), 16, 30, ""));
        run.tryTo("start a producer", () -> run.producer(topic));
    }

    /** Creation is off; the topic exists, the group does not. */
    private static void unknownGroup(Run run) throws Exception {
        run.tryTo("receive", () ->
                run.receive(run.simple(run.get("group"), all(run.get("topic")), 1), 16, 30, ""));
    }

    private static void illegalNames(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.producer();
        run.tryTo("topic with a space", () -> producer.send(to("a b", "x").build()));
        run.tryTo("topic too long", () -> producer.send(to(repeat("t", 128), "x").build()));
        run.tryTo("group with a space", () -> run.simple("a b", all(topic), 1));
        run.tryTo("group too long", () -> run.receive(run.simple(repeat("g", 256), all(topic), 1), 16, 30, ""));
    }

    private static MessageBuilder withProperties(String topic, int count) {
        MessageBuilder builder = to(topic, "x");
        for (int n = 0; n < count; n++) {
            builder.addProperty("p" + n, "v");
        }
        return builder;
    }

    private static void illegalMessages(Run run) throws Exception {
        String topic = run.get("topic");
        String ordered = run.get("topic2");
        String delayed = run.get("topic3");
        Producer producer = run.producer(topic, ordered, delayed);
        Map<String, java.util.function.Supplier<MessageBuilder>> steps = new LinkedHashMap<>();
        steps.put("129 properties", () -> withProperties(topic, 129));
        steps.put("128 properties", () -> withProperties(topic, 128));
        steps.put("properties of 16385 bytes", () -> to(topic, "x").addProperty("p", repeat("v", 16_384)));
        steps.put("properties of 16384 bytes", () -> to(topic, "x").addProperty("p", repeat("v", 16_383)));
        steps.put("reserved property", () -> to(topic, "x").addProperty("UNIQ_KEY", "v"));
        steps.put("control character in a property", () -> to(topic, "x").addProperty("p", "a\u0001b"));
        steps.put("control character in the tag", () -> to(topic, "x").setTag("a\u0002b"));
        steps.put("control character in a key", () -> to(topic, "x").setKeys("a\u0002b"));
        steps.put("blank key", () -> to(topic, "x").setKeys(" "));
        steps.put("tag with a bar", () -> to(topic, "x").setTag("a|b"));
        steps.put("message group of 64 bytes", () -> to(ordered, "x").setMessageGroup(repeat("g", 64)));
        steps.put("message group of 63 bytes", () -> to(ordered, "x").setMessageGroup(repeat("g", 63)));
        long tooLate = System.currentTimeMillis() + Duration.ofHours(25).toMillis();
        steps.put("delay of 25 hours", () -> to(delayed, "x").setDeliveryTimestamp(tooLate));
        steps.put("empty body", () -> to(topic, ""));
        steps.forEach((step, message) -> run.tryTo(step, () -> producer.send(message.get().build())));
    }

    private static void illegalReceives(Run run) throws Exception {
        String topic = run.get("topic");
        Producer producer = run.producer(topic);
        run.sent(producer, to(topic, "x"));
        SimpleConsumer consumer = run.simple(run.get("group"), all(topic), 1);
        run.tryTo("invisible for 9 s", () -> run.receive(consumer, 16, 9, ""));
        run.tryTo("invisible for 13 h", () -> run.receive(consumer, 16, 13 * 3600, ""));
        run.tryTo("no messages asked", () -> run.receive(consumer, 0, 30, ""));
        MessageView message = run.receiveUntil(consumer, 1, 16, 30, false, "").get(0);
        run.tryTo("change to 13 h", () -> consumer.changeInvisibleDuration(message, Duration.ofHours(13)));
        run.tryTo("ack after a refused change", () -> consumer.ack(message));
        run.tryTo("tag expression of bars", () ->
                run.receive(run.simple(run.get("group2"), Map.of(topic, tags("||")), 1), 16, 30, ""));
    }

    // interruptions

    /** Answers whether it is done. */
    private interface Step {
        boolean done() throws Exception;
    }

    /** As an application does it: again, until the gateway is back and the step is done. */
    private static void patiently(Run run, Step step) {
        run.waitFor(() -> {
            try {
                return step.done();
            } catch (Exception error) {
                run.say("unanswered", "error", errorFacts(error));
                rest(100);
                return false;
            }
        });
    }

    /** Sends all the time, whether or not anybody answers. */
    private static final class Steady extends Thread {
        final AtomicBoolean stopped = new AtomicBoolean();
        final Set<String> answered = Collections.synchronizedSet(new HashSet<>());
        private final Run run;
        private final Producer producer;
        private final String topic;

        Steady(Run run, Producer producer, String topic) {
            this.run = run;
            this.producer = producer;
            this.topic = topic;
            setDaemon(true);
        }

        @Override
        public void run() {
            for (int number = 1; !stopped.get(); number++) {
                try {
                    answered.add(run.sent(producer, to(topic, "m" + number), "by", "steady").getMessageId().toString());
                } catch (Exception error) {
                    run.say("unanswered", "error", errorFacts(error));
                }
                rest(20);
            }
        }

        void awaitMore() {
            int goal = answered.size() + 10;
            run.waitFor(() -> answered.size() >= goal);
        }
    }

    /** The gateway is stopped and started twice while this goes on; `go` tells each return. */
    private static void interrupted(Run run) throws Exception {
        String topic = run.get("topic");
        String heldTopic = run.get("topic2");
        Set<String> seen = ConcurrentHashMap.newKeySet();
        Producer producer = run.producer(topic); // the oldest version cannot name several: it sometimes hangs
        run.push(run.get("group"), all(topic), message -> {
            run.saw(message, "background");
            seen.add(message.getMessageId().toString());
            return true;
        });
        SimpleConsumer simple = run.simple(run.get("group2"), all(heldTopic), 1);
        Steady steady = new Steady(run, producer, topic);
        steady.start();
        for (String interruption : List.of("one", "two")) {
            interruption(run, interruption, producer, simple, steady);
        }
        steady.stopped.set(true);
        steady.join();
        run.waitFor(() -> seen.containsAll(steady.answered));
        run.quiet(simple);
    }

    /** The gateway begins to drain at `ready`; another one is there at `go`, and the first one drains on. */
    private static void drained(Run run) throws Exception {
        String topic = run.get("topic");
        Set<String> seen = ConcurrentHashMap.newKeySet();
        Producer producer = run.producer(topic);
        run.push(run.get("group"), all(topic), message -> {
            run.saw(message, "");
            seen.add(message.getMessageId().toString());
            return true;
        });
        Steady steady = new Steady(run, producer, topic);
        steady.start();
        steady.awaitMore();
        run.waitFor(() -> !seen.isEmpty());
        run.say("ready");
        run.go.acquire();
        steady.awaitMore();
        steady.stopped.set(true);
        steady.join();
        run.waitFor(() -> seen.containsAll(steady.answered));
    }

    private static List<MessageView> gather(
            Run run, SimpleConsumer consumer, int count, String by, boolean ack, int holdSeconds) {
        List<MessageView> found = new ArrayList<>();
        patiently(run, () -> {
            for (MessageView message : run.receive(consumer, 1, holdSeconds, by)) {
                found.add(message);
                if (ack) {
                    run.acked(consumer, message);
                }
            }
            return found.size() >= count;
        });
        return found;
    }

    private static void interruption(Run run, String name, Producer producer, SimpleConsumer simple, Steady steady)
            throws Exception {
        String halfTopic = run.get("topic4");
        SimpleConsumer delayed = run.simple(run.get("group2"), all(run.get("topic3")), 1);
        SimpleConsumer halves = run.simple(run.get("group2"), all(halfTopic), 1);
        for (int n = 0; n < 6; n++) {
            run.sent(producer, to(run.get("topic2"), name + " " + n), "by", "held");
        }
        List<MessageView> held = gather(run, simple, 3, name, false, HOLD_S);
        gather(run, simple, 3, name, false, GIVE_BACK_S);
        run.acked(simple, held.get(0));
        run.acked(simple, held.get(1));
        long due = System.currentTimeMillis() + 6_000;
        MessageBuilder late = to(run.get("topic3"), name + " delayed").setDeliveryTimestamp(due);
        run.sent(producer, late, "due", due);
        Producer first = run.checkedProducer(message -> toldCheck(run, message), halfTopic);
        run.sentHalf(first, to(halfTopic, name + " half"), first.beginTransaction());
        steady.awaitMore();
        run.say("ready");
        run.go.acquire();
        patiently(run, () -> {
            run.acked(simple, held.get(2));
            return true;
        });
        patiently(run, () -> {
            run.checkedProducer(message -> toldCheck(run, message), halfTopic);
            return true;
        });
        gather(run, simple, 3, name + " again", true, GIVE_BACK_S);
        gather(run, delayed, 1, name + " delayed", true, GIVE_BACK_S);
        gather(run, halves, 1, name + " half", true, GIVE_BACK_S);
        steady.awaitMore();
        run.close(delayed);
        run.close(halves);
    }
}
