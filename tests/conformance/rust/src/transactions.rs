//! The scenarios with transactions, wrong types and interruptions, for the versions that have transactions.

use std::collections::HashSet;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rocketmq::conf::ProducerOption;
use rocketmq::error::ClientError;
use rocketmq::model::message::MessageView;
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::json;

use crate::run::{
    error_facts, now_ms, now_s, tags, Asking, Outgoing, Played, Run, Scenario, PATIENCE, PLAIN,
};
use crate::scenarios::SHORT_S;
use crate::sdk;

pub const ALL: &[(&str, Scenario)] = &[
    ("transaction", |run| Box::pin(transaction(run))),
    ("transaction_check", |run| Box::pin(transaction_check(run))),
    ("transaction_unnamed", |run| Box::pin(transaction_unnamed(run))),
    ("transaction_abandon", |run| Box::pin(transaction_abandon(run))),
    ("transaction_successor", |run| {
        Box::pin(transaction_successor(run))
    }),
    ("wrong_type", |run| Box::pin(wrong_type(run))),
    ("interrupted", |run| Box::pin(interrupted(run))),
    ("drained", |run| Box::pin(drained(run))),
];

/// How long a consumer holds what it acknowledges after an interruption: however long that takes,
const HOLD_S: u64 = 300;
/// and what comes again after it.
const GIVE_BACK_S: u64 = 30;

type Checked = fn(&Run, &MessageView) -> TransactionResolution;

async fn checked_producer(
    run: &Arc<Run>,
    topics: &[&str],
    check: Checked,
) -> Result<Arc<Producer>, ClientError> {
    let mut option = ProducerOption::default();
    option.set_topics(topics.to_vec());
    let asked = Arc::downgrade(run);
    let checker = move |_: String, message: MessageView| {
        asked
            .upgrade()
            .map_or(TransactionResolution::UNKNOWN, |run| check(&run, &message))
    };
    let mut producer = Producer::new_transaction_producer(option, run.client("", 3), Box::new(checker))?;
    producer.start().await?;
    Ok(run.kept_producer(producer))
}

fn told_check(run: &Run, message: &MessageView) -> TransactionResolution {
    let body = String::from_utf8_lossy(message.body()).to_string();
    let tag = message.tag().unwrap_or_default();
    run.say(
        "checked",
        json!({ "id": message.message_id(), "body": body, "tag": tag }),
    );
    run.checked.lock().expect("not poisoned").insert(body.clone());
    if body == "bad" {
        TransactionResolution::ROLLBACK
    } else {
        TransactionResolution::COMMIT
    }
}

/// Send a half message and tell its receipt.
async fn half(run: &Run, producer: &Producer, message: &Outgoing) -> Result<impl Transaction, ClientError> {
    let built = message.builder().enable_transaction().build()?;
    let transaction = producer.send_transaction_message(built).await?;
    run.sent_as(message, transaction.message_id(), json!({}));
    Ok(transaction)
}

async fn transaction(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let producer = checked_producer(&run, &[topic], |_, _| TransactionResolution::UNKNOWN).await?;
    let consumer = run.simple(run.get("group"), &[topic], SHORT_S).await?;
    let committed = half(
        &run,
        &producer,
        &Outgoing::new(topic, "committed").tag("t").keys(&["k"]),
    )
    .await?;
    let rolled_back = half(
        &run,
        &producer,
        &Outgoing::new(topic, "rolled back").tag("t").keys(&["k"]),
    )
    .await?;
    run.quiet_until(&consumer, topic, &tags("*"), "too early", 0)
        .await?;
    rolled_back.rollback().await?;
    committed.commit().await?;
    run.say("ended", json!({}));
    run.take(&consumer, topic, 1, "").await?;
    run.quiet_until(&consumer, topic, &tags("*"), "quiet", now_ms() + 4000)
        .await
}

async fn transaction_check(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let producer = checked_producer(&run, &[topic], told_check).await?;
    let consumer = run.simple(run.get("group"), &[topic], SHORT_S).await?;
    for body in ["good", "bad"] {
        half(&run, &producer, &Outgoing::new(topic, body).tag("t")).await?;
    }
    run.take(&consumer, topic, 1, "").await?;
    // Brokers ask about one after the other.
    let patience = Instant::now() + PATIENCE;
    while !run.checked.lock().expect("not poisoned").contains("bad") && Instant::now() < patience {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    run.quiet_until(&consumer, topic, &tags("*"), "quiet", now_ms() + 10_000)
        .await
}

async fn transaction_unnamed(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let producer = checked_producer(&run, &[], told_check).await?;
    let consumer = run.simple(run.get("group"), &[topic], SHORT_S).await?;
    half(&run, &producer, &Outgoing::new(topic, "good")).await?;
    run.take(&consumer, topic, 1, "").await
}

/// Sends a half message and dies at once, the whole process of it.
async fn transaction_abandon(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let producer = checked_producer(&run, &[topic], told_check).await?;
    half(&run, &producer, &Outgoing::new(topic, "orphan")).await?;
    std::process::abort();
}

async fn transaction_successor(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    checked_producer(&run, &[topic], told_check).await?;
    let consumer = run.simple(run.get("group"), &[topic], SHORT_S).await?;
    run.take(&consumer, topic, 1, "").await
}

async fn wrong_type(run: Arc<Run>) -> Played {
    let (plain, ordered, several) = (run.get("topic"), run.get("topic2"), run.get("topic3"));
    let producer = checked_producer(&run, &[plain, ordered, several], |_, _| {
        TransactionResolution::ROLLBACK
    })
    .await?;
    let due = now_s() + 1;
    for (step, message) in [
        ("FIFO to NORMAL", Outgoing::new(plain, "x").group("g")),
        ("DELAY to NORMAL", Outgoing::new(plain, "x").due(due)),
        ("NORMAL to FIFO", Outgoing::new(ordered, "x")),
        ("NORMAL to several", Outgoing::new(several, "x")),
        ("FIFO to several", Outgoing::new(several, "x").group("g")),
        ("DELAY to several", Outgoing::new(several, "x").due(due)),
    ] {
        run.try_to(step, sdk::send(&producer, message.builder())).await;
    }
    for (step, topic) in [
        ("TRANSACTION to NORMAL", plain),
        ("TRANSACTION to several", several),
    ] {
        run.try_to(step, async {
            half(&run, &producer, &Outgoing::new(topic, "x"))
                .await?
                .rollback()
                .await
        })
        .await;
    }
    Ok(())
}

// interruptions

async fn rest(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// As an application does it: again, until it works and does not say false; gives up when patience ends.
async fn patiently<F>(run: &Run, mut action: impl FnMut() -> F)
where
    F: Future<Output = Result<bool, ClientError>>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        match action().await {
            Ok(true) => return,
            Ok(false) => rest(20).await,
            Err(error) => {
                run.say("unanswered", json!({ "error": error_facts(&error) }));
                rest(100).await;
            }
        }
        if Instant::now() > deadline {
            run.say("gave up waiting", json!({}));
            return;
        }
    }
}

/// Sends all the time, whether or not anybody answers, until told to stop.
async fn send_steadily(
    run: Arc<Run>,
    producer: Arc<Producer>,
    answered: Arc<Mutex<HashSet<String>>>,
    stop: Arc<AtomicBool>,
) {
    let mut number = 0;
    while !stop.load(Ordering::SeqCst) {
        number += 1;
        let message = Outgoing::new(run.get("topic"), format!("m{number}"));
        match run.sent(&producer, &message, json!({ "by": "steady" })).await {
            Ok(receipt) => drop(
                answered
                    .lock()
                    .expect("not poisoned")
                    .insert(receipt.message_id().to_string()),
            ),
            Err(error) => run.say("unanswered", json!({ "error": error_facts(&error) })),
        }
        rest(20).await;
    }
}

/// Receives all the time, as a push consumer of other clients does, until told to stop.
async fn read_steadily(
    run: Arc<Run>,
    consumer: Arc<SimpleConsumer>,
    seen: Arc<Mutex<HashSet<String>>>,
    stop: Arc<AtomicBool>,
) {
    let topic = run.get("topic");
    while !stop.load(Ordering::SeqCst) {
        let asking = Asking {
            by: "background",
            invisible_s: 10,
            ..PLAIN
        };
        match run.receive(&consumer, topic, &tags("*"), asking).await {
            Ok(messages) => {
                for message in messages {
                    seen.lock()
                        .expect("not poisoned")
                        .insert(message.message_id().to_string());
                    if let Err(error) = run.acked(&consumer, &message).await {
                        run.say("unanswered", json!({ "error": error_facts(&error) }));
                    }
                }
            }
            Err(error) => {
                run.say("unanswered", json!({ "error": error_facts(&error) }));
                rest(100).await;
            }
        }
    }
}

async fn interrupted(run: Arc<Run>) -> Played {
    let (topic, held_topic) = (run.get("topic"), run.get("topic2"));
    let answered: Arc<Mutex<HashSet<String>>> = Arc::default();
    let seen: Arc<Mutex<HashSet<String>>> = Arc::default();
    let (stop_sending, stop_reading) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let producer = run.producer(&[topic, held_topic]).await?;
    let reader = run.simple(run.get("group"), &[topic], SHORT_S).await?;
    let simple = run.simple(run.get("group2"), &[held_topic], SHORT_S).await?;
    let reading = tokio::spawn(read_steadily(
        run.clone(),
        reader,
        seen.clone(),
        stop_reading.clone(),
    ));
    let sending = tokio::spawn(send_steadily(
        run.clone(),
        producer.clone(),
        answered.clone(),
        stop_sending.clone(),
    ));
    for name in ["one", "two"] {
        interruption(&run, name, &producer, &simple, &answered).await?;
    }
    stop_sending.store(true, Ordering::SeqCst);
    let _ = sending.await;
    all_read(&run, &answered, &seen).await;
    stop_reading.store(true, Ordering::SeqCst);
    let _ = reading.await;
    run.quiet(&simple, held_topic).await
}

/// Until everything that was answered has been read.
async fn all_read(run: &Arc<Run>, answered: &Mutex<HashSet<String>>, seen: &Mutex<HashSet<String>>) {
    patiently(run, || async {
        Ok(answered
            .lock()
            .expect("not poisoned")
            .is_subset(&seen.lock().expect("not poisoned")))
    })
    .await;
}

/// The gateway begins to drain at `ready`; another one is there at `go`, and the first one drains on.
async fn drained(run: Arc<Run>) -> Played {
    let topic = run.get("topic");
    let answered: Arc<Mutex<HashSet<String>>> = Arc::default();
    let seen: Arc<Mutex<HashSet<String>>> = Arc::default();
    let (stop_sending, stop_reading) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let producer = run.producer(&[topic]).await?;
    let reader = run.simple(run.get("group"), &[topic], SHORT_S).await?;
    let reading = tokio::spawn(read_steadily(
        run.clone(),
        reader,
        seen.clone(),
        stop_reading.clone(),
    ));
    let sending = tokio::spawn(send_steadily(
        run.clone(),
        producer,
        answered.clone(),
        stop_sending.clone(),
    ));
    answered_more(&run, &answered).await;
    patiently(&run, || async {
        Ok(!seen.lock().expect("not poisoned").is_empty())
    })
    .await;
    run.say("ready", json!({}));
    run.go.acquire().await.expect("it is never closed").forget();
    answered_more(&run, &answered).await;
    stop_sending.store(true, Ordering::SeqCst);
    let _ = sending.await;
    all_read(&run, &answered, &seen).await;
    stop_reading.store(true, Ordering::SeqCst);
    let _ = reading.await;
    Ok(())
}

async fn interruption(
    run: &Arc<Run>,
    name: &str,
    producer: &Producer,
    simple: &SimpleConsumer,
    answered: &Mutex<HashSet<String>>,
) -> Played {
    let (held_topic, delayed_topic, half_topic) = (run.get("topic2"), run.get("topic3"), run.get("topic4"));
    let delayed = run.simple(run.get("group2"), &[delayed_topic], SHORT_S).await?;
    let halves = run.simple(run.get("group2"), &[half_topic], SHORT_S).await?;
    for n in 0..6 {
        run.sent(
            producer,
            &Outgoing::new(held_topic, format!("{name} {n}")),
            json!({ "by": "held" }),
        )
        .await?;
    }
    let held = gather(run, simple, held_topic, 3, name, false, HOLD_S).await;
    gather(run, simple, held_topic, 3, name, false, GIVE_BACK_S).await;
    for message in &held[..2] {
        run.acked(simple, message).await?;
    }
    let due = now_s() + 6;
    let later = Outgoing::new(delayed_topic, format!("{name} delayed")).due(due);
    run.sent(producer, &later, json!({ "due": due * 1000 })).await?;
    let first = checked_producer(run, &[half_topic], told_check).await?;
    half(run, &first, &Outgoing::new(half_topic, format!("{name} half"))).await?;
    answered_more(run, answered).await;
    run.say("ready", json!({}));
    run.go.acquire().await.expect("it is never closed").forget();
    patiently(&run, || async {
        run.acked(simple, &held[2]).await.map(|()| true)
    })
    .await;
    patiently(&run, || async {
        checked_producer(run, &[half_topic], told_check)
            .await
            .map(|_| true)
    })
    .await;
    for (consumer, topic, count, what) in [
        (simple, held_topic, 3, "again"),
        (&*delayed, delayed_topic, 1, "delayed"),
        (&*halves, half_topic, 1, "half"),
    ] {
        let by = format!("{name} {what}");
        gather(run, consumer, topic, count, &by, true, GIVE_BACK_S).await;
    }
    answered_more(run, answered).await;
    run.close(delayed).await;
    run.close(halves).await;
    Ok(())
}

async fn answered_more(run: &Run, answered: &Mutex<HashSet<String>>) {
    let goal = answered.lock().expect("not poisoned").len() + 10;
    patiently(&run, || async {
        Ok(answered.lock().expect("not poisoned").len() >= goal)
    })
    .await;
}

async fn gather(
    run: &Run,
    consumer: &SimpleConsumer,
    topic: &str,
    count: usize,
    by: &str,
    ack: bool,
    hold_s: u64,
) -> Vec<MessageView> {
    let found = Mutex::new(Vec::new());
    patiently(&run, || async {
        let asking = Asking {
            maximum: 1,
            invisible_s: hold_s,
            by,
            ack,
        };
        for message in run.receive(consumer, topic, &tags("*"), asking).await? {
            if ack {
                run.acked(consumer, &message).await?;
            }
            found.lock().expect("not poisoned").push(message);
        }
        Ok(found.lock().expect("not poisoned").len() >= count)
    })
    .await;
    found.into_inner().expect("not poisoned")
}
