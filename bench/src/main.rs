//! `tb-bench`: measures tickbridge and its peers with an open-loop load.

mod client;
mod clock;
mod crowd;
mod interest;
mod outcome;
mod process;
mod publisher;
mod report;
mod rig;
mod run;
mod scan;
mod scenario;
mod schedule;
mod server;
mod streams;
mod tally;
mod token;
mod verdict;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};

#[derive(Parser)]
#[command(about = "Open-loop load generator and benchmarks for tickbridge and its peers")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run scenarios by name, or by a part of it.
    Run {
        /// Names or parts of names; `quick` and `all` are sets.
        #[arg(required = true)]
        names: Vec<String>,
        /// Repetitions of each.
        #[arg(long, default_value_t = 1)]
        runs: u32,
        /// Repeat an invalid run at most so often.
        #[arg(long, default_value_t = 0)]
        retry: u32,
        /// The gateway's binary.
        #[arg(long, default_value = "../target/release/tickbridge")]
        gateway: PathBuf,
        /// Where a JSON file per run goes.
        #[arg(long)]
        out: Option<PathBuf>,
        /// Load-generating threads.
        #[arg(long, default_value_t = 2)]
        threads: usize,
        /// Overrides the window, in seconds.
        #[arg(long)]
        window: Option<f64>,
        /// Overrides the deliveries per second.
        #[arg(long)]
        rate: Option<f64>,
        /// Overrides the number of sessions.
        #[arg(long)]
        sessions: Option<usize>,
        /// A setting of the gateway, as `NAME=value` of its environment.
        #[arg(long)]
        set: Vec<String>,
    },
    /// SSE against WebSocket: streams of 50 tokens, one every 30 ms, and connecting in rounds.
    Streams {
        /// The gateway's binary.
        #[arg(long, default_value = "../target/release/tickbridge")]
        gateway: PathBuf,
        /// Repetitions of each.
        #[arg(long, default_value_t = 5)]
        runs: u32,
        /// Where the JSON goes.
        #[arg(long)]
        out: Option<PathBuf>,
    },
    /// Make the page and the summary from the runs' JSON files.
    Report {
        /// The folder that holds `runs/`.
        #[arg(long, default_value = "results")]
        out: PathBuf,
    },
    /// List the scenarios.
    List,
}

fn main() -> Result<()> {
    let limit = process::raise_descriptor_limit();
    match Args::parse().command {
        Command::List => {
            for s in scenario::all() {
                println!(
                    "{:<28} {:?} {} × {} {:.0}/s {:?}",
                    s.name, s.dialect, s.sessions, s.topics, s.rate, s.arrival
                );
            }
            Ok(())
        }
        Command::Streams { gateway, runs, out } => streams::study(&gateway, runs, out.as_deref()),
        Command::Report { out } => report::write(&out),
        Command::Run { names, runs, retry, gateway, out, threads, window, rate, sessions, set } => {
            let settings = set.iter().map(|s| {
                let (name, value) = s.split_once('=').with_context(|| format!("--set {s} has no ="))?;
                Ok((name.to_owned(), value.to_owned()))
            });
            let settings: Vec<_> = settings.collect::<Result<_>>()?;
            let mut chosen = choose(&names);
            for s in &mut chosen {
                s.window_s = window.unwrap_or(s.window_s);
                s.rate = rate.unwrap_or(s.rate);
                s.sessions = sessions.unwrap_or(s.sessions);
                s.settings.extend(settings.iter().cloned());
                anyhow::ensure!(s.sessions as u64 + 100 < limit, "only {limit} descriptors");
            }
            anyhow::ensure!(!chosen.is_empty(), "no scenario is called like that; see `tb-bench list`");
            run_all(&chosen, runs, retry, &gateway, out.as_deref(), threads)
        }
    }
}

fn choose(names: &[String]) -> Vec<scenario::Scenario> {
    if names.iter().any(|n| n == "quick") {
        return scenario::quick();
    }
    let all = scenario::all();
    let exact: Vec<_> = all.iter().filter(|s| names.contains(&s.name)).cloned().collect();
    if exact.len() == names.len() {
        return exact;
    }
    all.into_iter().filter(|s| names.iter().any(|n| n == "all" || s.name.contains(n.as_str()))).collect()
}

fn run_all(
    chosen: &[scenario::Scenario],
    runs: u32,
    retry: u32,
    gateway: &Path,
    out: Option<&Path>,
    threads: usize,
) -> Result<()> {
    let dir = std::env::temp_dir().join(format!("tb-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let binary = gateway.canonicalize().unwrap_or_else(|_| gateway.to_owned());
    // Repetitions are the outer loop, so that a bad minute of the machine doesn't hit one scenario alone.
    for run in 1..=runs {
        for scenario in chosen {
            let options = run::Options { binary: &binary, dir: &dir, threads, run };
            let mut attempts = 0;
            loop {
                match run::run(scenario, &options) {
                    Ok(outcome) => {
                        println!("{}", outcome.line());
                        if !outcome.invalid.is_empty() && attempts < retry {
                            attempts += 1;
                            continue;
                        }
                        if let Some(out) = out {
                            std::fs::create_dir_all(out)?;
                            let file = out.join(format!("{}-{run}.json", scenario.name));
                            std::fs::write(&file, serde_json::to_string_pretty(&outcome)?)?;
                        }
                    }
                    Err(e) => println!("{:<26} #{run} FAILED: {e:#}", scenario.name),
                }
                break;
            }
        }
    }
    let _ = std::fs::remove_dir_all(&dir);
    Ok(())
}
