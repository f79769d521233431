package popgate.classic;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * One classic client in a process of its own: works until its input ends, and tells what it sees, one JSON line per
 * fact. Times ({@code at}) are seconds of the machine's monotonic clock, which all processes share.
 *
 * <p>{@code Worker producer|concurrent|orderly key=value … 127.0.0.1:9876}. A producer sends what lines of {@code run
 * ID send key=value …} say, and with {@code names} messages of its own, one after the other; to {@code ordered} those
 * of {@code lanes}, each of which has its queue. A consumer fails the first {@code fails} deliveries of what begins with {@code bad}. A line
 * that begins with {@code go} is the end, too.
 */
public final class Worker {
    private static final int PULL_MESSAGE = 11;
    private static final int QUERY_CONSUMER_OFFSET = 14;
    private static final int UPDATE_CONSUMER_OFFSET = 15;
    private static final int CONSUMER_SEND_MSG_BACK = 36;
    /** Answers of a pull: something, nothing, nothing that it may have, and that it is to begin elsewhere. */
    private static final List<Integer> SERVED = List.of(0, 19, 20, 21);
    /** Sooner than shipped: clients tell their positions, and that they are there. */
    private static final int OFTEN_MS = 1_000;
    /** Of the listeners that take their time: in milliseconds. */
    private static final int HANDLED_MS = 5;

    private static final BufferedReader IN =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    private final Map<String, String> parameters;
    private final AtomicBoolean ended = new AtomicBoolean();

    private Worker(Map<String, String> parameters) {
        this.parameters = parameters;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> parameters = new HashMap<>();
        int last = arguments.length - 1;
        pairs(Arrays.asList(arguments).subList(1, last), parameters);
        parameters.put("name_server", arguments[last]);
        Worker worker = new Worker(parameters);
        // As shipped clients give up after 3 s, and one that could not start cannot be started again.
        new Run("worker", arguments[last], Map.of("producers", "warm-up")).warmUp();
        if (arguments[0].equals("producer")) {
            worker.produce();
        } else {
            worker.consume(arguments[0].equals("orderly"));
        }
        say("end");
        System.out.flush();
        Runtime.getRuntime().halt(0); // clients leave threads behind that would hold the process
    }

    private static void pairs(List<String> words, Map<String, String> into) {
        for (String pair : words) {
            int equals = pair.indexOf('=');
            into.put(pair.substring(0, equals), pair.substring(equals + 1));
        }
    }

    private String get(String name, String otherwise) {
        return parameters.getOrDefault(name, otherwise);
    }

    private static double now() {
        return System.nanoTime() / 1e9;
    }

    private static void say(String fact, Object... pairs) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("run", "worker");
        line.put("fact", fact);
        line.put("at", now());
        for (int i = 0; i < pairs.length; i += 2) {
            line.put(pairs[i].toString(), pairs[i + 1]);
        }
        String text = Json.write(line);
        synchronized (System.out) {
            System.out.println(text);
        }
    }

    // producing

    private void produce() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(get("group", "producers"));
        producer.setNamesrvAddr(get("name_server", ""));
        producer.setInstanceName(get("instance", "worker") + ProcessHandle.current().pid());
        producer.setVipChannelEnabled(false);
        producer.setHeartbeatBrokerInterval(OFTEN_MS);
        // Each try is told here: what a client repeats by itself nobody sees.
        producer.setRetryTimesWhenSendFailed(0);
        Run.patient(producer);
        producer.setSendMsgTimeout(Integer.parseInt(get("timeout_ms", "20000")));
        producer.start();
        say("started");
        List<Thread> own = new ArrayList<>();
        for (String name : get("names", "").split(",")) {
            if (!name.isEmpty()) {
                own.add(new Thread(() -> sendOn(producer, name, get("topic", ""), 0)));
            }
        }
        int lanes = Integer.parseInt(get("lanes", "0"));
        if (lanes > 0) {
            own.add(new Thread(() -> sendOn(producer, "ordered", get("ordered", ""), lanes)));
        }
        own.forEach(Thread::start);
        obey(producer);
        for (Thread thread : own) {
            thread.join();
        }
        producer.shutdown();
    }

    /** What the lines of the input say, until it ends. */
    private void obey(DefaultMQProducer producer) throws Exception {
        for (String line = IN.readLine(); line != null && !line.startsWith("go"); line = IN.readLine()) {
            Map<String, String> told = new LinkedHashMap<>();
            List<String> words = Arrays.asList(line.trim().split(" +"));
            pairs(words.subList(3, words.size()), told);
            Message message = new Message(told.remove("topic"), bytes(told.remove("body")));
            if (told.containsKey("tag")) {
                message.setTags(told.remove("tag"));
            }
            if (told.containsKey("keys")) {
                message.setKeys(List.of(told.remove("keys").split(",")));
            }
            String order = told.remove("order");
            if (order != null) {
                // What gRPC clients call a message group.
                MessageAccessor.putProperty(message, "__SHARDINGKEY", order);
            }
            told.forEach(message::putUserProperty);
            attempt(producer, message, order == null ? "" : order, List.of());
        }
        ended.set(true);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** One message of each lane after the other; where there are no lanes, to whichever queue. */
    private void sendOn(DefaultMQProducer producer, String name, String topic, int lanes) {
        long rest = Long.parseLong(get("rest_ms", "30"));
        for (int number = 0; !ended.get(); number++) {
            String lane = lanes == 0 ? "" : name + "-" + number % lanes;
            int place = lanes == 0 ? number : number / lanes;
            String body = (lanes == 0 ? name : lane) + "/" + place;
            say("trying", "body", body);
            Message message = new Message(topic, bytes(body));
            List<Object> more = List.of("lane", lane, "number", place, "topic", topic);
            // The next one of a lane must not go before it.
            while (!attempt(producer, message, lane, more)) {
                if (ended.get()) {
                    break;
                }
                Run.rest(50);
            }
            Run.rest(rest);
        }
    }

    /** Whether the answer said that it is stored. */
    private boolean attempt(DefaultMQProducer producer, Message message, String lane, List<Object> more) {
        String body = Run.text(message);
        try {
            SendResult result = lane.isEmpty()
                    ? producer.send(message)
                    : producer.send(
                            message,
                            (queues, one, key) -> queues.get(Math.floorMod(key.hashCode(), queues.size())),
                            lane);
            List<Object> data = new ArrayList<>(List.of("body", body, "id", result.getMsgId()));
            data.addAll(List.of("queue", result.getMessageQueue().getQueueId(), "offset", result.getQueueOffset()));
            data.addAll(List.of("status", String.valueOf(result.getSendStatus())));
            data.addAll(more);
            say("sent", data.toArray());
            return true;
        } catch (Exception error) {
            say("attempt lost", "body", body, "why", String.valueOf(error));
            return false;
        }
    }

    // consuming

    private void consume(boolean orderly) throws Exception {
        Thread input = new Thread(() -> {
            try {
                for (String line = IN.readLine(); line != null && !line.startsWith("go"); line = IN.readLine()) {
                    continue;
                }
            } catch (IOException broken) {
                say("input broke");
            }
            ended.set(true);
        });
        input.setDaemon(true);
        input.start();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        int count = Integer.parseInt(get("clients", "1"));
        while (consumers.size() < count) {
            String client = get("instance", "worker") + "-" + consumers.size();
            DefaultMQPushConsumer consumer = made(orderly, client);
            consumer.start();
            consumers.add(consumer);
            say("started", "client", client);
        }
        while (!ended.get()) {
            Run.rest(20);
        }
        for (DefaultMQPushConsumer consumer : consumers) {
            consumer.shutdown();
        }
    }

    private DefaultMQPushConsumer made(boolean orderly, String client) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
                get("group", ""), new Positions(client), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(get("name_server", ""));
        consumer.setInstanceName(client + ProcessHandle.current().pid());
        consumer.setVipChannelEnabled(false);
        consumer.setHeartbeatBrokerInterval(OFTEN_MS);
        consumer.setPersistConsumerOffsetInterval(OFTEN_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        Run.patient(consumer);
        consumer.setSuspendCurrentQueueTimeMillis(200);
        if (!get("attempts", "").isEmpty()) {
            consumer.setMaxReconsumeTimes(Integer.parseInt(get("attempts", "")) - 1);
        }
        for (String topic : get("topic", "").split(",")) {
            consumer.subscribe(topic, "*");
        }
        int fails = Integer.parseInt(get("fails", "0"));
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt message : messages) {
                    if (!handled(message, fails, client)) {
                        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                    }
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(Integer.parseInt(get("level", "1")));
                for (MessageExt message : messages) {
                    if (!handled(message, fails, client)) {
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    }
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        return consumer;
    }

    /** What it gets, and whether it is done with it. */
    private boolean handled(MessageExt message, int fails, String client) {
        String body = Run.text(message);
        int attempt = message.getReconsumeTimes() + 1;
        String delivery = body + "#" + System.nanoTime();
        List<Object> data = new ArrayList<>(List.of("body", body, "delivery", delivery, "attempt", attempt));
        data.addAll(List.of("client", client));
        data.addAll(List.of("id", message.getMsgId(), "topic", message.getTopic()));
        data.addAll(List.of("broker", String.valueOf(message.getBrokerName())));
        data.addAll(List.of("queue", message.getQueueId(), "offset", message.getQueueOffset()));
        if (get("full", "").equals("true")) {
            data.addAll(List.of("properties", message.getProperties(), "born", message.getBornTimestamp()));
            data.addAll(List.of("born_host", message.getBornHostString(), "flag", message.getFlag()));
            data.addAll(List.of("tag", String.valueOf(message.getTags()), "keys", String.valueOf(message.getKeys())));
        }
        say("got", data.toArray());
        boolean good = !body.startsWith("bad") || attempt > fails;
        if (good) {
            Run.rest(HANDLED_MS);
        }
        say(good ? "done" : "failed", "delivery", delivery, "body", body);
        return good;
    }

    /** Tells which positions are told, which of them were answered (those in pulls are), and where a client begins. */
    private static final class Positions implements RPCHook {
        private final String client;

        Positions(String client) {
            this.client = client;
        }

        @Override
        public void doBeforeRequest(String address, RemotingCommand request) {
            if (request.getCode() == UPDATE_CONSUMER_OFFSET) {
                tell("told", request, "commitOffset");
            } else if (request.getCode() == QUERY_CONSUMER_OFFSET) {
                tell("asked", request, "");
            }
        }

        @Override
        public void doAfterResponse(String address, RemotingCommand request, RemotingCommand answer) {
            if (answer == null) {
                return;
            }
            if (request.getCode() == CONSUMER_SEND_MSG_BACK) {
                say("sent back", "client", client, "code", answer.getCode());
            } else if (request.getCode() == QUERY_CONSUMER_OFFSET) {
                request.addExtField("began", answer.getExtFields() == null
                        ? "-1" : answer.getExtFields().getOrDefault("offset", "-1"));
                tell("began", request, "began");
            } else if (request.getCode() == PULL_MESSAGE && SERVED.contains(answer.getCode())) {
                request.makeCustomHeaderToNet();
                if ((Integer.parseInt(request.getExtFields().getOrDefault("sysFlag", "0")) & 1) != 0) {
                    tell("confirmed", request, "commitOffset");
                }
            }
        }

        private void tell(String fact, RemotingCommand request, String field) {
            Map<String, String> kept = request.getExtFields() == null ? Map.of() : new HashMap<>(request.getExtFields());
            request.makeCustomHeaderToNet();
            Map<String, String> fields = new HashMap<>(kept);
            fields.putAll(request.getExtFields());
            say(fact, "client", client, "topic", fields.get("topic"), "queue", Integer.parseInt(fields.get("queueId")),
                    "offset", Long.parseLong(fields.getOrDefault(field, "-1")));
        }
    }
}
