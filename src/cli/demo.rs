//! `tickbridge demo`: the whole gateway with an embedded bus and a feed of its own.
//!
//! Not here: the sources (`cli::feed::source`), the page (`edge`).

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::BufReader;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::feed::source::{RandomWalk, Replay};
use super::pace::Pace;
use super::{Failure, serve};
use crate::clock::Now;
use crate::config::raw::Sources;
use crate::publish::QuotePublisher;
use crate::upstream::publish::statement::{Stamp, Statement};

/// Run everything without Redis and without tokens: a live page on http://127.0.0.1:8080/.
///
/// Prices are a random walk of the instruments 1 to N, or replayed from a file over and over. The
/// environment is read as by serve, but mode, anonymous sessions and the page are fixed.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Instruments of the random walk.
    #[arg(long, value_name = "N", default_value = "200", conflicts_with = "replay")]
    instruments: NonZeroUsize,
    /// Quotes per second in all [default: one per instrument].
    #[arg(long, value_name = "R", value_parser = rate)]
    rate: Option<f64>,
    /// Replay this CSV file: a header with a name per instrument, then one row of prices per step.
    ///
    /// The first column numbers the rows; instruments get the ids 1, 2, … in the order of the header.
    #[arg(long, value_name = "FILE.csv")]
    replay: Option<PathBuf>,
}

/// Most quotes per second that the demo makes; the page is for eyes.
const MAX_RATE: f64 = 100_000.0;

fn rate(text: &str) -> Result<f64, String> {
    let read = text.parse().ok().filter(|rate| *rate > 0.0 && *rate <= MAX_RATE);
    read.ok_or_else(|| format!("must be a number above 0 and up to {MAX_RATE}"))
}

/// What the demo publishes.
type Source = Box<dyn Iterator<Item = Statement> + Send>;

impl Args {
    /// What its configuration is made from.
    fn sources(variables: Vec<(OsString, OsString)>) -> Sources {
        Sources {
            presets: PRESETS.map(|(key, value)| ("demo", key, value)).to_vec(),
            variables,
            arguments: FIXED.map(|(key, value)| (key, value.into(), "demo")).to_vec(),
            ..Sources::default()
        }
    }

    /// The source, and how many of its quotes are published per second.
    fn source(&self) -> Result<(Source, f64), Failure> {
        let (source, n): (Source, usize) = match &self.replay {
            None => {
                let n = self.instruments.get();
                (Box::new(RandomWalk::new(n, rand::random())), n)
            }
            Some(path) => {
                let unusable = |error: &dyn std::fmt::Display| {
                    let path = path.display();
                    Failure::Misused(format!(
                        "{path} cannot be replayed ({error}); give a CSV file of prices"
                    ))
                };
                let file = File::open(path).map_err(|error| unusable(&error))?;
                let replay =
                    Replay::read(BufReader::new(file), usize::MAX).map_err(|error| unusable(&error))?;
                let n = replay.names().count();
                (Box::new(replay), n)
            }
        };
        // No more instruments than a u32 counts would fit in memory, and an f64 holds all of those.
        let one_each = n as f64;
        Ok((source, self.rate.unwrap_or(one_each.min(MAX_RATE))))
    }
}

/// Runs the command.
///
/// # Errors
/// The file cannot be replayed, the start failed, or a core task did.
pub fn run(args: &Args) -> Result<(), Failure> {
    let (source, rate) = args.source()?;
    let variables = Sources::of_process(Vec::new()).variables;
    serve::gateway(Args::sources(variables), |app| {
        // Who starts it by hand sees the address without reading the log; a closed standard output is no reason
        // not to run.
        let _ = super::print(&format!("the live page is on http://{}/\n", app.addresses().public));
        generate(source, rate, app.publisher())
    })
}

/// What the environment may change. No balancer needs notice of a demo's end.
const PRESETS: [(&str, &str); 5] = [
    ("listen.public", "127.0.0.1:8080"),
    ("listen.admin", "127.0.0.1:8081"),
    ("listen.allowed_origins", "*"),
    ("drain.notice", "0s"),
    ("demo.streams", "64"),
];

/// What makes it the demo.
const FIXED: [(&str, &str); 3] =
    [("redis.mode", "embedded"), ("auth.anonymous", "true"), ("demo.page", "true")];

/// How often what is due is published. Shorter than a frame of a screen.
const TICK: Duration = Duration::from_millis(10);

/// Publishes what is due, until it is aborted with the gateway.
async fn generate(mut source: Source, rate: f64, publisher: Arc<dyn QuotePublisher>) {
    let start = Now::read();
    let mut pace = Pace::new(rate);
    let mut sequences = HashMap::new();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = Now::read();
        let due = source.by_ref().take(pace.due(now.mono - start.mono)).map(|statement| {
            // Counted from the time of the start, so that browsers that saw a run before this one don't take
            // its quotes for older ones. Gaps tell the page what was conflated.
            let seq = sequences.entry(statement.id).or_insert(start.unix_us as u64);
            *seq += 1;
            let mut payload = Vec::new();
            statement.write_json(Stamp { ms: now.unix_ms(), seq: Some(*seq) }, &mut payload);
            payload
        });
        publisher.publish(due.collect()).await;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::time::Instant;

    use tokio::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::publish::Published;

    /// Passes on every payload.
    struct Recorder(Sender<Vec<u8>>);

    impl QuotePublisher for Recorder {
        fn publish(
            &self,
            payloads: Vec<Vec<u8>>,
        ) -> Pin<Box<dyn Future<Output = Vec<Published>> + Send + '_>> {
            Box::pin(async move {
                for payload in &payloads {
                    self.0.send(payload.clone()).await.expect("the test listens");
                }
                payloads.iter().map(|_| Published::Done).collect()
            })
        }
    }

    async fn ids(published: &mut Receiver<Vec<u8>>, n: usize) -> Vec<i64> {
        let mut ids = Vec::new();
        while ids.len() < n {
            let payload = tokio::time::timeout(Duration::from_secs(10), published.recv()).await;
            let payload: serde_json::Value =
                serde_json::from_slice(&payload.expect("in time").expect("a payload")).expect("JSON");
            ids.push(payload["stockId"].as_i64().expect("an id"));
        }
        ids
    }

    #[tokio::test]
    async fn every_instrument_gets_a_price_at_the_rate_asked_for() {
        let (sender, mut published) = channel(1_000);
        let source: Source = Box::new(RandomWalk::new(50, 7));
        let start = Instant::now();
        let feed = tokio::spawn(generate(source, 500.0, Arc::new(Recorder(sender))));
        let mut first = ids(&mut published, 50).await;
        first.sort_unstable();
        assert_eq!(first, (1..=50).collect::<Vec<_>>());
        // Fifty at 500 a second; less would mean that the pace is not kept.
        assert!(start.elapsed() >= Duration::from_millis(90), "{:?}", start.elapsed());
        feed.abort();
    }

    fn args(args: &[&str]) -> Args {
        use clap::{Args as _, FromArgMatches};
        let command = Args::augment_args(clap::Command::new("demo"));
        let matches = command.try_get_matches_from([&["demo"], args].concat()).expect("good usage");
        Args::from_arg_matches(&matches).expect("good usage")
    }

    #[test]
    fn by_default_each_instrument_moves_once_a_second() {
        let rate = |given: &[&str]| args(given).source().map(|(_, rate)| rate).expect("a source");
        assert_eq!(rate(&[]), 200.0);
        assert_eq!(rate(&["--instruments", "3"]), 3.0);
        assert_eq!(rate(&["--rate", "2.5"]), 2.5);
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/data/eustockmarkets.csv");
        assert_eq!(rate(&["--replay", file]), 4.0);
    }

    #[test]
    fn a_replay_starts_over_at_the_end_of_the_file() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/data/eustockmarkets.csv");
        let (source, _) = args(&["--replay", file]).source().expect("a source");
        let first: Vec<_> =
            source.take(4 * 1_860 + 4).map(|statement| (statement.id, statement.price)).collect();
        assert_eq!(first[..4], first[4 * 1_860..]);
    }

    #[test]
    fn the_demo_sets_existing_keys_to_values_that_serve() {
        let sources = Args::sources(Vec::new());
        let loaded =
            crate::config::load::load(&sources, crate::config::load::Purpose::Serve).expect("no problem");
        assert!(loaded.config.demo.page && loaded.config.auth.anonymous);
        assert!(
            loaded.config.listen.public.ip().is_loopback() && loaded.config.listen.admin.ip().is_loopback()
        );
    }
}
