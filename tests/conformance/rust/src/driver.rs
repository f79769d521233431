//! Runs named scenarios with the official Rust client and tells what it saw, one JSON line per fact.
//!
//! By hand: `newest 127.0.0.1:8081 normal topic=T group=G`. By the tests: `newest 127.0.0.1:8081`, then on
//! standard input lines of `run ID SCENARIO key=value …` and `go ID`; the end of input ends the process after
//! the runs. Facts are those of the Python driver, by the same names.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinHandle;

use crate::run::{Run, Scenario};

type Table = &'static [(&'static str, Scenario)];

pub fn main(tables: &[Table]) {
    let scenarios: HashMap<_, _> = tables.iter().flat_map(|table| table.iter().copied()).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime
        .expect("threads can be started")
        .block_on(serve(scenarios));
    std::process::exit(0); // the client leaves tasks behind that would hold the process
}

async fn serve(scenarios: HashMap<&'static str, Scenario>) {
    let mut arguments = std::env::args().skip(1);
    let endpoint = arguments.next().expect("an endpoint");
    if let Some(name) = arguments.next() {
        let run = Arc::new(Run::new("1", &endpoint, parameters(arguments)));
        perform(run, scenarios[name.as_str()]).await;
        return;
    }
    let mut runs: HashMap<String, Arc<Run>> = HashMap::new();
    let mut performed: Vec<JoinHandle<()>> = Vec::new();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words[0] == "go" {
            runs[words[1]].go.add_permits(1);
            continue;
        }
        let run = Arc::new(Run::new(words[1], &endpoint, parameters(words[3..].iter())));
        runs.insert(words[1].to_string(), run.clone());
        performed.push(tokio::spawn(perform(run, scenarios[words[2]])));
    }
    for one in performed {
        let _ = one.await;
    }
}

async fn perform(run: Arc<Run>, scenario: Scenario) {
    // A task of its own: the client panics here and there, and that must end this run only.
    match tokio::spawn(scenario(run.clone())).await {
        Ok(Ok(())) => {
            run.say("finished", json!({}));
            run.close_all().await;
            run.say("end", json!({}));
        }
        Ok(Err(error)) => run.say("crash", json!({ "error": crate::run::error_facts(&error) })),
        Err(panic) => run.say(
            "crash",
            json!({ "error": { "type": "panic", "code": "", "text": panic.to_string() } }),
        ),
    }
}

fn parameters<S: AsRef<str>>(pairs: impl Iterator<Item = S>) -> HashMap<String, String> {
    pairs
        .filter_map(|pair| {
            pair.as_ref()
                .split_once('=')
                .map(|(name, value)| (name.to_string(), value.to_string()))
        })
        .collect()
}
