//! Many clients of the JavaScript library in one process of Node, asked over its standard input and output.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::stack::Stack;
use crate::support::token::token;
use crate::support::wait::{in_time, let_pass};

/// An answer of the process.
const SOON: Duration = Duration::from_secs(10);

/// The clients; they leave with their owner.
pub struct Library {
    _child: tokio::process::Child,
    ask: tokio::process::ChildStdin,
    answers: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
}

impl Library {
    /// `n` clients that show these instruments.
    pub async fn start(stack: &Stack, n: usize, ids: &[&str]) -> Self {
        let mut command = tokio::process::Command::new("node");
        command.args(["--no-warnings", "--experimental-websocket", "tests/compose/clients.mjs"]);
        command
            .arg(format!("https://localhost:{}/api", stack.edge().port()))
            .arg(token("js"))
            .arg(n.to_string());
        command.args(ids).env("NODE_EXTRA_CA_CERTS", stack.root().await).kill_on_drop(true);
        command.current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (ask, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { _child: child, ask, answers: BufReader::new(answers).lines() }
    }

    async fn ask(&mut self) -> Value {
        self.ask.write_all(b"\n").await.unwrap();
        let line = in_time("an answer of the clients", SOON, self.answers.next_line()).await;
        serde_json::from_str(&line.unwrap().expect("the clients run")).unwrap()
    }

    /// Waits until all are live and show `price`; the moments of loss and return since the last question.
    pub async fn all_show(&mut self, n: usize, price: &str, within: Duration) -> (Vec<f64>, Vec<f64>) {
        let (mut lost, mut back) = (Vec::new(), Vec::new());
        let started = Instant::now();
        loop {
            let answer = self.ask().await;
            let moments = |name: &str| answer[name].as_array().unwrap().iter().map(|ms| ms.as_f64().unwrap());
            lost.extend(moments("lost"));
            back.extend(moments("back"));
            if answer["live"] == n && answer["prices"][price] == n {
                return (lost, back);
            }
            assert!(started.elapsed() < within, "not all show {price} within {within:?}: {answer}");
            let_pass(Duration::from_millis(100)).await;
        }
    }
}
