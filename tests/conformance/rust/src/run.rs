//! One run of one scenario: its parameters, its clients, its voice.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType, SendReceipt};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Map, Value};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::sdk;

pub type Played = Result<(), ClientError>;
pub type Scenario = fn(Arc<Run>) -> Pin<Box<dyn Future<Output = Played> + Send>>;

/// How long a scenario waits for something that must come.
pub const PATIENCE: Duration = Duration::from_secs(240);

pub fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970")
        .as_millis() as u64
}

pub fn now_s() -> i64 {
    (now_ms() / 1000) as i64
}

pub fn tags(expression: &str) -> FilterExpression {
    FilterExpression::new(FilterType::Tag, expression)
}

pub fn sql(expression: &str) -> FilterExpression {
    FilterExpression::new(FilterType::Sql, expression)
}

/// An error as a fact: its kind, the name of its status code (empty: the client's own), its text.
pub fn error_facts(error: &ClientError) -> Value {
    let text = error.to_string();
    let named = error
        .context()
        .iter()
        .find(|(name, _)| *name == "code")
        .map(|(_, code)| code.clone());
    let code = named.unwrap_or_else(|| {
        let cause = text
            .split_once("source: status: ")
            .and_then(|(_, rest)| rest.split_once(','));
        cause
            .map(|(name, _)| format!("GRPC_{}", in_capitals(name)))
            .unwrap_or_default()
    });
    json!({ "type": format!("{:?}", error.kind()), "code": code, "text": text })
}

/// `DeadlineExceeded` is `DEADLINE_EXCEEDED`.
fn in_capitals(name: &str) -> String {
    let mut capitals = String::new();
    for (index, letter) in name.chars().enumerate() {
        if letter.is_uppercase() && index > 0 {
            capitals.push('_');
        }
        capitals.push(letter.to_ascii_uppercase());
    }
    capitals
}

/// Whether the client gave up a poll at the end of its time.
fn is_late(error: &ClientError) -> bool {
    let text = error.to_string();
    text.contains("Timeout expired") || text.contains("DeadlineExceeded")
}

fn body_facts(body: &[u8]) -> Value {
    let text = if body.len() <= 200 {
        String::from_utf8_lossy(body).to_string()
    } else {
        String::new()
    };
    json!({ "size": body.len(), "sha256": format!("{:x}", Sha256::digest(body)), "body": text })
}

/// A message to send, kept so that what was sent can be told.
#[derive(Clone, Default)]
pub struct Outgoing {
    pub topic: String,
    pub body: Vec<u8>,
    pub tag: String,
    pub keys: Vec<String>,
    pub properties: HashMap<String, String>,
    pub group: String,
    pub due_s: i64,
}

impl Outgoing {
    pub fn new(topic: &str, body: impl Into<Vec<u8>>) -> Outgoing {
        Outgoing {
            topic: topic.to_string(),
            body: body.into(),
            ..Outgoing::default()
        }
    }

    pub fn tag(self, tag: &str) -> Outgoing {
        Outgoing {
            tag: tag.to_string(),
            ..self
        }
    }

    pub fn keys(self, keys: &[&str]) -> Outgoing {
        Outgoing {
            keys: keys.iter().map(|key| key.to_string()).collect(),
            ..self
        }
    }

    pub fn property(mut self, name: &str, value: &str) -> Outgoing {
        self.properties.insert(name.to_string(), value.to_string());
        self
    }

    pub fn group(self, group: &str) -> Outgoing {
        Outgoing {
            group: group.to_string(),
            ..self
        }
    }

    pub fn due(self, due_s: i64) -> Outgoing {
        Outgoing { due_s, ..self }
    }

    pub fn builder(&self) -> MessageBuilder {
        let mut builder = MessageBuilder::builder()
            .set_topic(&self.topic)
            .set_body(self.body.clone());
        if !self.tag.is_empty() {
            builder = builder.set_tag(&self.tag);
        }
        if !self.keys.is_empty() {
            builder = builder.set_keys(self.keys.clone());
        }
        if !self.properties.is_empty() {
            builder = builder.set_properties(self.properties.clone());
        }
        if !self.group.is_empty() {
            builder = builder.set_message_group(&self.group);
        }
        if self.due_s != 0 {
            builder = builder.set_delivery_timestamp(self.due_s);
        }
        builder
    }
}

/// How long a consumer holds what it acknowledges, in seconds. Longer than any scenario: when the time is over
/// a RocketMQ that stood still gives out again what was acknowledged in time, before it reads that it was.
pub const HOLD_S: u64 = 600;

/// How many to ask for, and what to do with what comes.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    pub maximum: i32,
    pub invisible_s: u64,
    pub ack: bool,
    pub by: &'a str,
}

pub const PLAIN: Asking<'static> = Asking {
    maximum: 16,
    invisible_s: HOLD_S,
    ack: true,
    by: "",
};

pub struct Run {
    pub endpoint: String,
    pub go: Semaphore,
    /// Bodies of the half messages that were asked about.
    pub checked: Mutex<HashSet<String>>,
    id: String,
    params: HashMap<String, String>,
    producers: Mutex<Vec<Arc<Producer>>>,
    consumers: Mutex<Vec<Arc<SimpleConsumer>>>,
}

impl Run {
    pub fn new(id: &str, endpoint: &str, params: HashMap<String, String>) -> Run {
        Run {
            endpoint: endpoint.to_string(),
            go: Semaphore::new(0),
            checked: Mutex::default(),
            id: id.to_string(),
            params,
            producers: Mutex::default(),
            consumers: Mutex::default(),
        }
    }

    pub fn get(&self, name: &str) -> &str {
        self.params.get(name).map(String::as_str).unwrap_or_default()
    }

    // telling

    pub fn say(&self, fact: &str, data: Value) {
        let mut line = Map::new();
        line.insert("run".into(), json!(self.id));
        line.insert("fact".into(), json!(fact));
        line.insert("at".into(), json!(now_ms()));
        if let Value::Object(fields) = data {
            line.extend(fields);
        }
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{}", Value::Object(line)).and_then(|()| out.flush());
    }

    pub fn saw(&self, message: &MessageView, by: &str) {
        let mut keys = message.keys().to_vec();
        keys.sort();
        let mut facts = json!({
            "by": by,
            "id": message.message_id(),
            "topic": message.topic(),
            "tag": message.tag().unwrap_or_default(),
            "keys": keys,
            "properties": message.properties(),
            "group": message.message_group().unwrap_or_default(),
            "attempt": message.delivery_attempt(),
            "corrupted": false,
        });
        merge(&mut facts, body_facts(message.body()));
        self.say("received", facts);
    }

    /// Do something that may be refused: tells `done` or `refused` with the error.
    pub async fn try_to<T>(&self, step: &str, action: impl Future<Output = Result<T, ClientError>>) {
        match action.await {
            Ok(_) => self.say("done", json!({ "step": step })),
            Err(error) => self.say("refused", json!({ "step": step, "error": error_facts(&error) })),
        }
    }

    // clients

    pub fn client(&self, endpoint: &str, await_s: u64) -> ClientOption {
        let shortest: u64 = self.get("shortest_poll_s").parse().unwrap_or(0); // RocketMQ's own proxy: 5
        let mut option = ClientOption::default();
        option.set_access_url(if endpoint.is_empty() {
            &self.endpoint
        } else {
            endpoint
        });
        option.set_enable_tls(!self.get("tls").is_empty());
        // It repeats a send that is not answered in time (as shipped 3 s); not every broker knows repeats.
        option.set_timeout(Duration::from_secs(45));
        option.set_long_polling_timeout(Duration::from_secs(await_s.max(shortest)));
        option
    }

    pub async fn producer_at(&self, endpoint: &str, topics: &[&str]) -> Result<Arc<Producer>, ClientError> {
        let mut option = ProducerOption::default();
        option.set_topics(topics.to_vec());
        Ok(self.kept_producer(sdk::producer(option, self.client(endpoint, 3)).await?))
    }

    pub async fn producer(&self, topics: &[&str]) -> Result<Arc<Producer>, ClientError> {
        self.producer_at("", topics).await
    }

    pub fn kept_producer(&self, producer: Producer) -> Arc<Producer> {
        let producer = Arc::new(producer);
        self.producers
            .lock()
            .expect("not poisoned")
            .push(producer.clone());
        producer
    }

    pub async fn simple_at(
        &self,
        endpoint: &str,
        group: &str,
        topics: &[&str],
        await_s: u64,
    ) -> Result<Arc<SimpleConsumer>, ClientError> {
        let mut option = SimpleConsumerOption::default();
        option.set_consumer_group(group);
        option.set_topics(topics.to_vec());
        let consumer = Arc::new(sdk::consumer(option, self.client(endpoint, await_s)).await?);
        self.consumers
            .lock()
            .expect("not poisoned")
            .push(consumer.clone());
        Ok(consumer)
    }

    pub async fn simple(
        &self,
        group: &str,
        topics: &[&str],
        await_s: u64,
    ) -> Result<Arc<SimpleConsumer>, ClientError> {
        self.simple_at("", group, topics, await_s).await
    }

    pub async fn close(&self, consumer: Arc<SimpleConsumer>) {
        self.consumers
            .lock()
            .expect("not poisoned")
            .retain(|kept| !Arc::ptr_eq(kept, &consumer));
        self.ended(
            "SimpleConsumer",
            Arc::try_unwrap(consumer).ok().map(sdk::end_consumer),
        )
        .await;
    }

    pub async fn close_all(&self) {
        let producers = std::mem::take(&mut *self.producers.lock().expect("not poisoned"));
        let consumers = std::mem::take(&mut *self.consumers.lock().expect("not poisoned"));
        for producer in producers {
            self.ended("Producer", Arc::try_unwrap(producer).ok().map(sdk::end_producer))
                .await;
        }
        for consumer in consumers {
            self.ended(
                "SimpleConsumer",
                Arc::try_unwrap(consumer).ok().map(sdk::end_consumer),
            )
            .await;
        }
    }

    async fn ended(&self, client: &str, ending: Option<impl Future<Output = Result<(), ClientError>>>) {
        let told = match ending {
            Some(ending) => ending.await.err().map(|error| error_facts(&error)),
            None => Some(json!("it is still in use")),
        };
        if let Some(error) = told {
            self.say("not closed", json!({ "client": client, "error": error }));
        }
    }

    // doing

    /// Send and tell the receipt.
    pub async fn sent(
        &self,
        producer: &Producer,
        message: &Outgoing,
        data: Value,
    ) -> Result<SendReceipt, ClientError> {
        let receipt = sdk::send(producer, message.builder()).await?;
        self.sent_as(message, receipt.message_id(), data);
        Ok(receipt)
    }

    pub fn sent_as(&self, message: &Outgoing, id: &str, data: Value) {
        let mut facts = json!({ "id": id, "group": message.group, "recall": "" });
        merge(&mut facts, body_facts(&message.body));
        merge(&mut facts, data);
        self.say("sent", facts);
    }

    /// A poll of this client has no time beyond its own. Where the machine was too busy for the answer to come within
    /// it, that is told, and is as if nothing came.
    pub async fn receive(
        &self,
        consumer: &SimpleConsumer,
        topic: &str,
        filter: &FilterExpression,
        asking: Asking<'_>,
    ) -> Result<Vec<MessageView>, ClientError> {
        match self.receive_in_time(consumer, topic, filter, asking).await {
            Err(error) if is_late(&error) => {
                self.say("late", json!({ "by": asking.by }));
                Ok(Vec::new())
            }
            other => other,
        }
    }

    pub async fn receive_in_time(
        &self,
        consumer: &SimpleConsumer,
        topic: &str,
        filter: &FilterExpression,
        asking: Asking<'_>,
    ) -> Result<Vec<MessageView>, ClientError> {
        let invisible = Duration::from_secs(asking.invisible_s);
        let messages = sdk::receive(consumer, topic, filter, asking.maximum, invisible).await?;
        self.say("batch", json!({ "by": asking.by, "count": messages.len() }));
        for message in &messages {
            self.saw(message, asking.by);
        }
        Ok(messages)
    }

    pub async fn acked(&self, consumer: &SimpleConsumer, message: &MessageView) -> Played {
        consumer.ack(message).await?;
        self.say(
            "acked",
            json!({ "id": message.message_id(), "attempt": message.delivery_attempt() }),
        );
        Ok(())
    }

    /// Receive `count` messages, acknowledging each if told so; fewer when patience ends.
    pub async fn receive_until(
        &self,
        consumer: &SimpleConsumer,
        topic: &str,
        filter: &FilterExpression,
        count: usize,
        asking: Asking<'_>,
    ) -> Result<Vec<MessageView>, ClientError> {
        let mut found = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while found.len() < count && Instant::now() < deadline {
            for message in self.receive(consumer, topic, filter, asking).await? {
                if asking.ack {
                    self.acked(consumer, &message).await?;
                }
                found.push(message);
            }
        }
        Ok(found)
    }

    /// All messages of a topic, acknowledged.
    pub async fn take(&self, consumer: &SimpleConsumer, topic: &str, count: usize, by: &str) -> Played {
        self.receive_until(consumer, topic, &tags("*"), count, Asking { by, ..PLAIN })
            .await?;
        Ok(())
    }

    /// Receive once more, and on until a wall time: what comes is told as such, and it should not.
    pub async fn quiet_until(
        &self,
        consumer: &SimpleConsumer,
        topic: &str,
        filter: &FilterExpression,
        by: &str,
        until_ms: u64,
    ) -> Played {
        loop {
            for message in self
                .receive(consumer, topic, filter, Asking { by, ..PLAIN })
                .await?
            {
                self.acked(consumer, &message).await?;
            }
            if now_ms() >= until_ms {
                return Ok(());
            }
        }
    }

    pub async fn quiet(&self, consumer: &SimpleConsumer, topic: &str) -> Played {
        self.quiet_until(consumer, topic, &tags("*"), "quiet", 0).await
    }
}

pub fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}
