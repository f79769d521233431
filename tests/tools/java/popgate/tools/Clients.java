package popgate.tools;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Clients for the tools to look at; they live until the process ends. */
final class Clients {
    private static final long LONGEST_MS = 90_000;
    private static final int REQUEST_MS = 20_000;

    private final String nameServer;
    private final Set<String> received = ConcurrentHashMap.newKeySet();
    private DefaultMQProducer producer;

    Clients(String nameServer) {
        this.nameServer = nameServer;
    }

    String perform(List<String> words) throws Exception {
        switch (words.get(0)) {
            case "@produce":
                return produce(words.get(1));
            case "@send":
                return send(words.get(1), Integer.parseInt(words.get(2)), words.get(3), words.get(4));
            case "@consume":
                return consume(words.get(1), words.get(2));
            case "@received":
                return received(words.get(1));
            default:
                throw new IllegalArgumentException(words.get(0));
        }
    }

    /** A producer of a group; there is one. */
    private String produce(String group) throws Exception {
        producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("producer");
        producer.setEnableTrace(true);
        producer.setSendMsgTimeout(REQUEST_MS);
        producer.setMqClientApiTimeout(REQUEST_MS);
        producer.setHeartbeatBrokerInterval(500); // the first one may find no broker yet
        producer.start();
        return "producing";
    }

    /** Sends a message with a key to a queue; told are both its ids, and where it is. */
    private String send(String topic, int queueId, String key, String body) throws Exception {
        Message message = new Message(topic, "TagA", key, body.getBytes(StandardCharsets.UTF_8));
        SendResult sent = producer.send(
                message,
                (queues, same, id) ->
                        queues.stream().filter(one -> id.equals(one.getQueueId())).findFirst().orElseThrow(),
                queueId);
        return String.join(
                " ",
                sent.getMsgId(),
                sent.getOffsetMsgId(),
                sent.getMessageQueue().getBrokerName(),
                String.valueOf(sent.getMessageQueue().getQueueId()),
                String.valueOf(sent.getQueueOffset()));
    }

    private String consume(String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("consumer");
        consumer.setPersistConsumerOffsetInterval(200);
        consumer.setMqClientApiTimeout(REQUEST_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> received.add(message.getMsgId()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer.buildMQClientId();
    }

    /** Waits until a consumer has a message. */
    private String received(String id) throws Exception {
        long end = System.nanoTime() + LONGEST_MS * 1_000_000;
        while (!received.contains(id)) {
            if (System.nanoTime() > end) {
                throw new IllegalStateException("nobody received " + id);
            }
            Thread.sleep(10);
        }
        return "received";
    }
}
