//! The scenarios, as far as the official Rust client's API goes.
//!
//! The Python driver has the same names and tells the same facts.

use std::sync::Arc;
use std::time::Instant;

use rocketmq::error::ClientError;
use rocketmq::model::common::Endpoints;
use rocketmq::model::message::{AckMessageEntry, MessageView};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::json;

use crate::run::{now_s, sql, tags, Asking, Outgoing, Played, Run, Scenario, HOLD_S, PATIENCE, PLAIN};
use crate::sdk;

/// Scenarios of every version.
pub const ALL: &[(&str, Scenario)] = &[
    ("normal", |run| Box::pin(normal(run))),
    ("empty_poll", |run| Box::pin(empty_poll(run))),
    ("broadcast", |run| Box::pin(broadcast(run))),
    ("fifo_simple", |run| Box::pin(fifo_simple(run))),
    ("delay", |run| Box::pin(delay(run))),
    ("tags", |run| Box::pin(tag_filters(run))),
    ("sql92", |run| Box::pin(sql92(run))),
    ("redelivery", |run| Box::pin(redelivery(run))),
];

/// Scenarios that the newest version runs besides.
#[allow(dead_code)] // by the driver of the oldest version
pub const NEWEST: &[(&str, Scenario)] = &[
    ("body_too_big", |run| Box::pin(body_too_big(run))),
    ("batch_send", |run| Box::pin(batch_send(run))),
    ("batch_receive", |run| Box::pin(batch_receive(run))),
    ("early_receive", |run| Box::pin(early_receive(run))),
    ("by_name", |run| Box::pin(dialling(run))),
    ("by_address", |run| Box::pin(dialling(run))),
    ("by_ipv6", |run| Box::pin(dialling(run))),
    ("first_use", |run| Box::pin(first_use(run))),
    ("idle", |run| Box::pin(idle(run))),
    ("fifo_held", |run| Box::pin(fifo_held(run))),
    ("unknown_topic", |run| Box::pin(unknown_topic(run))),
    ("unknown_group", |run| Box::pin(unknown_group(run))),
    ("illegal_names", |run| Box::pin(illegal_names(run))),
    ("illegal_messages", |run| Box::pin(illegal_messages(run))),
    ("illegal_receives", |run| Box::pin(illegal_receives(run))),
];

const LIMIT: usize = 4 * 1024 * 1024;
/// The shortest poll, in seconds: see `Run::receive`. What comes later than its end is lost to the client.
pub const SHORT_S: u64 = 10;

/// A body that differs from place to place.
fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|index| (index % 251) as u8).collect()
}

// sending and receiving

async fn normal(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let producer = run.producer(&[topic]).await?;
    let consumer = run.simple(run.get("group"), &[topic], SHORT_S).await?;
    let full = Outgoing::new(topic, "hello")
        .tag("TagA")
        .keys(&["k1", "k2"])
        .property("colour", "blue")
        .property("größe", "übergroß 🐇")
        .property("spaced key", " a b ")
        .property(&"k".repeat(200), &"v".repeat(2000));
    run.sent(&producer, &full, json!({ "label": "full" })).await?;
    // Every send of this client is asynchronous; these two are on their way at the same time.
    let later = Outgoing::new(topic, "grüße, 世界 🌍")
        .tag("标签")
        .keys(&["schlüssel"]);
    let bare = Outgoing::new(topic, "bare");
    tokio::try_join!(
        run.sent(&producer, &later, json!({ "label": "async" })),
        run.sent(&producer, &bare, json!({ "label": "bare" })),
    )?;
    run.take(&consumer, topic, 3, "").await?;
    run.quiet(&consumer, topic).await
}

/// One message is larger than what this client's gRPC takes; the others must come all the same.
async fn body_too_big(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let producer = run.producer(&[topic]).await?;
    let consumer = run.simple(run.get("group"), &[topic], SHORT_S).await?;
    for size in [1, LIMIT, 65_536, LIMIT - 65_536] {
        run.sent(&producer, &Outgoing::new(topic, pattern(size)), json!({}))
            .await?;
    }
    let over = Outgoing::new(topic, pattern(LIMIT + 1));
    run.try_to("one byte over", sdk::send(&producer, over.builder()))
        .await;
    run.take(&consumer, topic, 3, "").await?;
    run.quiet(&consumer, topic).await
}

/// Several messages in one send: the receipts are told in the order of the messages.
async fn batch_send(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let producer = run.producer(&[topic]).await?;
    let consumer = run.simple(run.get("group"), &[topic], SHORT_S).await?;
    let messages: Vec<Outgoing> = (0..10)
        .map(|n| Outgoing::new(topic, format!("m{n}")).tag("t"))
        .collect();
    let receipts = sdk::send_batch(&producer, messages.iter().map(Outgoing::builder).collect()).await?;
    run.say("receipts", json!({ "count": receipts.len() }));
    for (message, receipt) in messages.iter().zip(&receipts) {
        run.sent_as(message, receipt.message_id(), json!({}));
    }
    run.take(&consumer, topic, 10, "").await?;
    run.quiet(&consumer, topic).await
}

async fn batch_receive(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let producer = run.producer(&[topic]).await?;
    let consumer = run.simple(run.get("group"), &[topic], SHORT_S).await?;
    let mut sending = Vec::new();
    for n in 0..80 {
        let (run, producer) = (run.clone(), producer.clone());
        let message = Outgoing::new(topic, format!("m{n}"));
        sending.push(tokio::spawn(async move {
            run.sent(&producer, &message, json!({})).await.map(drop)
        }));
    }
    for one in sending {
        one.await.expect("it does not panic")?;
    }
    run.receive_until(
        &consumer,
        topic,
        &tags("*"),
        80,
        Asking {
            maximum: 100,
            ..PLAIN
        },
    )
    .await?;
    run.quiet(&consumer, topic).await
}

async fn early_receive(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let producer = run.producer(&[topic]).await?;
    for n in 0..8 {
        run.sent(&producer, &Outgoing::new(topic, format!("m{n}")), json!({}))
            .await?;
        let consumer = run.simple(run.get("group"), &[topic], SHORT_S).await?;
        run.take(&consumer, topic, 1, "").await?;
        run.close(consumer).await;
    }
    Ok(())
}

/// The client dials `dial`; every address it is told must be that one.
async fn dialling(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let endpoint = run.get("dial");
    let producer = run.producer_at(endpoint, &[topic]).await?;
    let consumer = run
        .simple_at(endpoint, run.get("group"), &[topic], SHORT_S)
        .await?;
    run.sent(&producer, &Outgoing::new(topic, "by name"), json!({}))
        .await?;
    for message in run.receive_until(&consumer, topic, &tags("*"), 1, PLAIN).await? {
        run.say(
            "told",
            json!({ "facade": message.endpoints().endpoint_url(), "dialled": endpoint }),
        );
    }
    Ok(())
}

async fn first_use(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let producer = run.producer(&[]).await?;
    run.sent(&producer, &Outgoing::new(topic, "first"), json!({}))
        .await?;
    let consumer = run.simple(run.get("group"), &[topic], SHORT_S).await?;
    run.take(&consumer, topic, 1, "").await?;
    run.quiet(&consumer, topic).await
}

// waiting

/// A short poll ends while a long one goes on; an arrival ends the long one with its message.
async fn empty_poll(run: Arc<Run>) -> Played {
    let topic = run.get("topic").to_string();
    let producer = run.producer(&[&topic]).await?;
    let patient = run.simple(run.get("group"), &[&topic], 20).await?;
    let hasty = run.simple(run.get("group"), &[&topic], SHORT_S).await?;
    let (waiter, where_to) = (run.clone(), topic.clone());
    let waiting = tokio::spawn(async move { waiter.take(&patient, &where_to, 1, "patient").await });
    let (mut answered, deadline) = (0, Instant::now() + PATIENCE);
    while answered < 2 && Instant::now() < deadline {
        let asking = Asking { by: "hasty", ..PLAIN };
        answered += run
            .receive_in_time(&hasty, &topic, &tags("*"), asking)
            .await
            .is_ok() as usize;
    }
    run.close(hasty).await;
    run.sent(&producer, &Outgoing::new(&topic, "at last"), json!({}))
        .await?;
    waiting.await.expect("it does not panic")
}

/// Two consumers of a broadcast group, each there before the first message.
async fn broadcast(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let group = run.get("group");
    let one = run.simple(group, &[topic], SHORT_S).await?;
    let two = run.simple(group, &[topic], SHORT_S).await?;
    for (consumer, by) in [(&one, "one"), (&two, "two")] {
        run.receive(consumer, topic, &tags("*"), Asking { by, ..PLAIN })
            .await?;
    }
    let producer = run.producer(&[topic]).await?;
    for n in 0..20 {
        run.sent(&producer, &Outgoing::new(topic, format!("m{n}")), json!({}))
            .await?;
    }
    for (consumer, by) in [(&one, "one"), (&two, "two")] {
        run.take(consumer, topic, 20, by).await?;
        run.quiet(consumer, topic).await?;
    }
    Ok(())
}

/// A consumer waits longer than one poll on an empty topic, then a message comes.
async fn idle(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let producer = run.producer(&[topic]).await?;
    let simple = run.simple(run.get("group"), &[topic], 20).await?;
    run.receive(&simple, topic, &tags("*"), Asking { by: "empty", ..PLAIN })
        .await?;
    run.sent(&producer, &Outgoing::new(topic, "at last"), json!({}))
        .await?;
    run.take(&simple, topic, 1, "simple").await
}

// order

async fn fifo_simple(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let producer = run.producer(&[topic]).await?;
    let consumer = run.simple(run.get("group"), &[topic], SHORT_S).await?;
    for n in 0..8 {
        for group in ["a", "b", "c", "d", "e"] {
            run.sent(
                &producer,
                &Outgoing::new(topic, format!("{group}{n}")).group(group),
                json!({}),
            )
            .await?;
        }
    }
    run.take(&consumer, topic, 40, "").await?;
    run.quiet(&consumer, topic).await
}

/// A held message holds its own message group and no other; when it comes back, order goes on.
async fn fifo_held(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let producer = run.producer(&[topic]).await?;
    let consumer = run.simple(run.get("group"), &[topic], SHORT_S).await?;
    run.sent(&producer, &Outgoing::new(topic, "a0").group("a"), json!({}))
        .await?;
    let holding = Asking {
        invisible_s: 60,
        ack: false,
        by: "first",
        ..PLAIN
    };
    run.receive_until(&consumer, topic, &tags("*"), 1, holding)
        .await?;
    for (group, body) in [("a", "a1"), ("b", "b0"), ("b", "b1")] {
        run.sent(&producer, &Outgoing::new(topic, body).group(group), json!({}))
            .await?;
    }
    run.take(&consumer, topic, 2, "meanwhile").await?;
    run.take(&consumer, topic, 2, "afterwards").await?;
    run.quiet(&consumer, topic).await
}

// time

async fn delay(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let producer = run.producer(&[topic]).await?;
    let consumer = run.simple(run.get("group"), &[topic], SHORT_S).await?;
    let base = now_s();
    for (body, due_s) in [("later", base + 4), ("soon", base + 2), ("past", base - 60)] {
        run.sent(
            &producer,
            &Outgoing::new(topic, body).due(due_s),
            json!({ "due": due_s * 1000 }),
        )
        .await?;
    }
    run.take(&consumer, topic, 3, "").await?;
    run.quiet(&consumer, topic).await
}

// filters

async fn tag_filters(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let producer = run.producer(&[topic]).await?;
    let some = run.simple(run.get("group"), &[topic], SHORT_S).await?;
    let every = run.simple(run.get("group2"), &[topic], SHORT_S).await?;
    for tag in ["a", "b", "c", "BBBB", ""] {
        // BBBB has the Java hash of AaAa
        let body = if tag.is_empty() { "none" } else { tag };
        run.sent(&producer, &Outgoing::new(topic, body).tag(tag), json!({}))
            .await?;
    }
    let wanted = tags("a || c || AaAa");
    run.receive_until(&some, topic, &wanted, 2, Asking { by: "some", ..PLAIN })
        .await?;
    run.take(&every, topic, 5, "every").await?;
    run.quiet_until(&some, topic, &wanted, "quiet", 0).await
}

async fn sql92(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let producer = run.producer(&[topic]).await?;
    let consumer = run.simple(run.get("group"), &[topic], SHORT_S).await?;
    for (body, tag, properties) in [
        ("yes: red 10", "", vec![("price", "10"), ("colour", "red")]),
        ("yes: grün 20", "", vec![("price", "20"), ("colour", "grün")]),
        ("no: red 21", "", vec![("price", "21"), ("colour", "red")]),
        ("no: blue 15", "", vec![("price", "15"), ("colour", "blue")]),
        ("no: red", "", vec![("colour", "red")]),
        ("yes: vip", "vip", vec![]),
        ("yes: weight", "", vec![("weight", "1")]),
    ] {
        let plain = Outgoing::new(topic, body).tag(tag);
        let message = properties
            .into_iter()
            .fold(plain, |message, (name, value)| message.property(name, value));
        run.sent(&producer, &message, json!({})).await?;
    }
    let expression =
        sql("(price BETWEEN 10 AND 20 AND colour IN ('red', 'grün')) OR TAGS = 'vip' OR weight IS NOT NULL");
    run.receive_until(&consumer, topic, &expression, 4, PLAIN).await?;
    run.quiet_until(&consumer, topic, &expression, "quiet", 0).await?;
    let broken = run.simple(run.get("group2"), &[topic], SHORT_S).await?;
    run.try_to(
        "illegal expression",
        run.receive(&broken, topic, &sql("price >"), PLAIN),
    )
    .await;
    Ok(())
}

// attempts

/// A message with a receipt handle that makes no sense.
struct Doctored(MessageView);

impl AckMessageEntry for Doctored {
    fn topic(&self) -> String {
        self.0.topic().to_string()
    }

    fn message_id(&self) -> String {
        self.0.message_id().to_string()
    }

    fn receipt_handle(&self) -> String {
        "nonsense".to_string()
    }

    fn endpoints(&self) -> &Endpoints {
        self.0.endpoints()
    }
}

async fn redelivery(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let producer = run.producer(&[topic]).await?;
    let consumer = run.simple(run.get("group"), &[topic], SHORT_S).await?;
    run.sent(&producer, &Outgoing::new(topic, "again"), json!({}))
        .await?;
    let first = held(&run, &consumer, topic, 10).await?;
    let second = held(&run, &consumer, topic, HOLD_S).await?;
    run.try_to("ack by expired handle", consumer.ack(&first)).await;
    run.acked(&consumer, &second).await?;
    run.try_to("ack again", consumer.ack(&second)).await;
    run.try_to("ack by malformed handle", consumer.ack(&Doctored(second)))
        .await;
    run.quiet(&consumer, topic).await
}

async fn held(
    run: &Run,
    consumer: &SimpleConsumer,
    topic: &str,
    invisible_s: u64,
) -> Result<MessageView, ClientError> {
    let asking = Asking {
        invisible_s,
        ack: false,
        ..PLAIN
    };
    let mut found = run.receive_until(consumer, topic, &tags("*"), 1, asking).await?;
    Ok(found.pop().expect("it came within patience"))
}

// refusals

async fn unknown_topic(run: Arc<Run>) -> Played {
    let (topic, group) = (run.get("topic"), run.get("group"));
    let producer = run.producer(&[]).await?;
    run.try_to("send", sdk::send(&producer, Outgoing::new(topic, "x").builder()))
        .await;
    run.try_to("start", run.simple(group, &[topic], SHORT_S)).await;
    let consumer = run.simple(group, &[], SHORT_S).await?;
    run.try_to("receive", run.receive(&consumer, topic, &tags("*"), PLAIN))
        .await;
    Ok(())
}

async fn unknown_group(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    run.try_to("receive", receive_as(&run, run.get("group"), topic))
        .await;
    Ok(())
}

async fn receive_as(run: &Run, group: &str, topic: &str) -> Result<Vec<MessageView>, ClientError> {
    let consumer = run.simple(group, &[topic], SHORT_S).await?;
    run.receive(&consumer, topic, &tags("*"), PLAIN).await
}

async fn illegal_names(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let producer = run.producer(&[]).await?;
    let send = |where_to: &str| sdk::send(&producer, Outgoing::new(where_to, "x").builder());
    run.try_to("topic with a space", send("a b")).await;
    run.try_to("topic too long", send(&"t".repeat(128))).await;
    run.try_to("group with a space", receive_as(&run, "a b", topic))
        .await;
    run.try_to("group too long", receive_as(&run, &"g".repeat(256), topic))
        .await;
    Ok(())
}

async fn illegal_messages(run: Arc<Run>) -> Played {
    let (topic, ordered, delayed) = (run.get("topic"), run.get("topic2"), run.get("topic3"));
    let producer = run.producer(&[topic, ordered, delayed]).await?;
    let plain = || Outgoing::new(topic, "x");
    let many = |count: usize| (0..count).fold(plain(), |message, n| message.property(&format!("p{n}"), "v"));
    for (step, message) in [
        ("129 properties", many(129)),
        ("128 properties", many(128)),
        (
            "properties of 16385 bytes",
            plain().property("p", &"v".repeat(16_384)),
        ),
        (
            "properties of 16384 bytes",
            plain().property("p", &"v".repeat(16_383)),
        ),
        ("reserved property", plain().property("UNIQ_KEY", "v")),
        (
            "control character in a property",
            plain().property("p", "a\u{1}b"),
        ),
        ("control character in the tag", plain().tag("a\u{2}b")),
        ("control character in a key", plain().keys(&["a\u{2}b"])),
        ("blank key", plain().keys(&[" "])),
        ("tag with a bar", plain().tag("a|b")),
        (
            "message group of 64 bytes",
            Outgoing::new(ordered, "x").group(&"g".repeat(64)),
        ),
        (
            "message group of 63 bytes",
            Outgoing::new(ordered, "x").group(&"g".repeat(63)),
        ),
        (
            "delay of 25 hours",
            Outgoing::new(delayed, "x").due(now_s() + 25 * 3600),
        ),
        ("empty body", Outgoing::new(topic, "")),
    ] {
        attempt(&run, &producer, step, &message).await;
    }
    Ok(())
}

async fn attempt(run: &Run, producer: &Producer, step: &str, message: &Outgoing) {
    run.try_to(step, sdk::send(producer, message.builder())).await;
}

async fn illegal_receives(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let producer = run.producer(&[topic]).await?;
    run.sent(&producer, &Outgoing::new(topic, "x"), json!({})).await?;
    let consumer = run.simple(run.get("group"), &[topic], SHORT_S).await?;
    let every = tags("*");
    for (step, asking) in [
        (
            "invisible for 9 s",
            Asking {
                invisible_s: 9,
                ..PLAIN
            },
        ),
        (
            "invisible for 13 h",
            Asking {
                invisible_s: 13 * 3600,
                ..PLAIN
            },
        ),
    ] {
        run.try_to(step, run.receive(&consumer, topic, &every, asking))
            .await;
    }
    run.take(&consumer, topic, 1, "").await?;
    run.try_to(
        "tag expression of bars",
        run.receive(&consumer, topic, &tags("||"), PLAIN),
    )
    .await;
    Ok(())
}
