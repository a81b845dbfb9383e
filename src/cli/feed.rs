//! `tickbridge feed`: publishes quotes into Redis at a given rate, open-loop.
//!
//! Not here: how a quote is written (`upstream::publish`).

mod flow;
mod schedule;
pub mod source;
mod tally;
mod tokens;

use super::Failure;
use super::redis::{RedisArgs, Servers};
use crate::config::{self, ChannelLayout};
use crate::shutdown::Requests;
use crate::upstream::publish::Publisher;
use crate::upstream::publish::statement::Statement;
use flow::Flow;
use schedule::{Rate, Schedule};
use source::{RandomWalk, Replay};
use std::convert::Infallible;
use std::fs::File;
use std::io::BufReader;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tally::Tally;
use tokio::time::{Instant, interval};
use tokio_util::sync::CancellationToken;

/// Between two lines of the report.
const REPORT: Duration = Duration::from_secs(1);

/// Publish quotes into Redis: price keys first, then the announcement, pipelined per node.
///
/// The pace is open-loop: each quote has its time, and what is late is sent late and reported, never left
/// out. Each quote is stamped when it is sent. A line per second tells the rate that was reached.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    redis: RedisArgs,
    /// Replay this CSV file: a header with a name per instrument, then one row of prices per step.
    ///
    /// The first column numbers the rows; instruments get the ids 1, 2, … in the order of the header.
    /// Prices keep the digits of the file.
    #[arg(long, value_name = "FILE.csv", conflicts_with = "synthetic")]
    replay: Option<PathBuf>,
    /// How often the file is replayed.
    #[arg(long, value_name = "N", default_value = "1", requires = "replay")]
    loops: NonZeroUsize,
    /// Publish a random walk; this is the default.
    #[arg(long)]
    synthetic: bool,
    /// Instruments of the random walk, with the ids 1 to N.
    #[arg(long, value_name = "N", default_value = "1000", conflicts_with = "replay")]
    instruments: NonZeroUsize,
    /// Makes the random walk repeatable.
    #[arg(long, value_name = "SEED", conflicts_with = "replay")]
    seed: Option<u64>,
    /// Quotes per second, or max for as many as the servers take.
    #[arg(long, value_name = "R", default_value = "1000")]
    rate: Rate,
    /// Stop after this time, such as 30s; otherwise when the file ends, or never.
    #[arg(long, value_name = "D", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Base name of the channels [default: as configured].
    #[arg(long, value_name = "NAME")]
    channel: Option<String>,
    /// Partitions; 1 for the base channel alone [default: as configured].
    #[arg(long, value_name = "N")]
    partitions: Option<std::num::NonZeroU32>,
    /// A channel per instrument, stored and published by the function that `tickbridge migrate` loads.
    #[arg(long)]
    per_instrument: bool,
    /// Store the price keys and announce nothing: to fill them, or to measure what the servers take.
    #[arg(long, conflicts_with = "per_instrument")]
    keys_only: bool,
    #[command(flatten)]
    tokens: tokens::TokenArgs,
}

impl Args {
    fn config(&self) -> Result<config::Redis, Failure> {
        let mut redis = self.redis.config()?;
        if let Some(name) = &self.channel {
            redis.channel.name.clone_from(name);
        }
        if let Some(partitions) = self.partitions {
            redis.channel.partitions = partitions.get();
        }
        if self.per_instrument {
            redis.channel.layout = ChannelLayout::PerInstrument;
        }
        Ok(redis)
    }

    fn source(&self) -> Result<Box<dyn Iterator<Item = Statement>>, Failure> {
        let Some(path) = &self.replay else {
            let seed = self.seed.unwrap_or_else(rand::random);
            return Ok(Box::new(RandomWalk::new(self.instruments.get(), seed)));
        };
        let unusable = |error: String| {
            Failure::Misused(format!("{}: {error}; give a CSV file of prices", path.display()))
        };
        let file = File::open(path).map_err(|error| unusable(error.to_string()))?;
        let replay = Replay::read(BufReader::new(file), self.loops.get());
        Ok(Box::new(replay.map_err(|error| unusable(error.to_string()))?))
    }
}

/// Runs the command.
///
/// # Errors
/// The arguments make no sense, the servers can't be reached, or something could not be published.
pub async fn run(args: Args) -> Result<(), Failure> {
    if args.tokens.tokens {
        return tokens::run(&args.tokens, &args.redis).await;
    }
    let (redis, source) = (args.config()?, args.source()?);
    let numbered = redis.channel.layout == ChannelLayout::Partitioned;
    let servers = Servers::find(&redis).await?;
    let (commands, connector) = (Arc::clone(&servers.commands), Arc::clone(&servers.connector));
    let mut publisher = Publisher::new(commands, connector, &redis, usize::MAX);
    if args.keys_only {
        publisher = publisher.silent();
    }
    let stop = CancellationToken::new();
    let requests = Requests::from_signals()
        .map_err(|error| Failure::Failed(format!("no handler of signals can be installed ({error})")))?;
    let (tally, start) = (Tally::default(), Instant::now());
    let flow = Flow::new(&publisher, &tally, &stop, numbered);
    let work = flow.run(source, Schedule::new(args.rate), args.duration);
    let report = async {
        let mut ticks = interval(REPORT);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            if let Err(failure) = super::print(&tally.line(start.elapsed())) {
                return failure;
            }
        }
    };
    let pass_on = async {
        requests.draining().await;
        stop.cancel();
        std::future::pending::<Infallible>().await
    };
    let n_lost = tokio::select! {
        n_lost = work => n_lost,
        failure = report => return Err(failure),
        never = pass_on => match never {},
        () = requests.stopping() => return Ok(()),
    };
    super::print(&tally.summary(start.elapsed(), args.rate, cpu_time()))?;
    match tally.last_failure() {
        Some(why) if n_lost > 0 => {
            let is_function = why.contains("Function not found");
            let remedy = if is_function { "run tickbridge migrate first" } else { "check the servers" };
            Err(Failure::Failed(format!(
                "the last quotes of {n_lost} instruments could not be published ({why}); {remedy}"
            )))
        }
        _ => Ok(()),
    }
}

/// What this process has used so far.
fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.try_into().unwrap_or_default()
}
