//! `tb-study`: in-process fan-out of 400 events to 50 to 1,000 subscribers, by four designs.
//!
//! No sockets: what is measured is the hand-over alone. Paced means that the next event is published
//! when the last one has reached everybody; flat out means at once, where bounded buffers must drop,
//! wait or conflate.

mod lanes;
mod queues;

use anyhow::Result;
use clap::Parser;
use serde::Serialize;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::path::PathBuf;
use std::time::Instant;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Events of one run, as in the study that is repeated.
pub const EVENTS: usize = 400;
/// Buffer of a subscriber, as there.
pub const BUFFER: usize = 64;

#[derive(Parser)]
struct Args {
    /// Repetitions, of which the median is shown.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Where the JSON goes.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// What became of a run's deliveries.
pub struct Tally {
    /// Nanoseconds from publishing to receipt, one per delivery.
    pub latencies_ns: Vec<u64>,
    /// Refused by a full buffer.
    pub dropped: u64,
    /// Replaced by a newer event before receipt.
    pub conflated: u64,
    /// From the first publication to the last receipt.
    pub seconds: f64,
}

/// The result of one design.
#[derive(Serialize)]
struct Finding {
    design: &'static str,
    mode: &'static str,
    subscribers: usize,
    runs: usize,
    delivered: u64,
    dropped: u64,
    conflated: u64,
    per_second: f64,
    per_second_spread: [f64; 2],
    p50_us: f64,
    p99_us: f64,
    p99_us_spread: [f64; 2],
    max_us: f64,
    allocations: usize,
    allocated_bytes: usize,
}

struct Run {
    delivered: u64,
    dropped: u64,
    conflated: u64,
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
    allocations: usize,
    allocated_bytes: usize,
}

fn measure(run: impl FnOnce() -> Tally) -> Run {
    let region = Region::new(ALLOCATOR);
    let mut tally = run();
    let change = region.change();
    tally.latencies_ns.sort_unstable();
    let sorted = &tally.latencies_ns;
    let at = |p: f64| sorted.get(((sorted.len() as f64 * p) as usize).min(sorted.len().max(1) - 1));
    let us = |p: f64| at(p).map_or(0.0, |&ns| ns as f64 / 1_000.0);
    Run {
        delivered: sorted.len() as u64,
        dropped: tally.dropped,
        conflated: tally.conflated,
        per_second: sorted.len() as f64 / tally.seconds,
        p50_us: us(0.5),
        p99_us: us(0.99),
        max_us: us(1.0),
        allocations: change.allocations,
        allocated_bytes: change.bytes_allocated,
    }
}

fn median(runs: &[Run], what: impl Fn(&Run) -> f64) -> (f64, [f64; 2]) {
    let mut values: Vec<f64> = runs.iter().map(what).collect();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], [values[0], values[values.len() - 1]])
}

fn main() -> Result<()> {
    let args = Args::parse();
    let mut findings = Vec::new();
    println!(
        "{:<18} {:<8} {:>5} {:>9} {:>8} {:>9} {:>7} {:>8} {:>8} {:>8} {:>9} {:>9}",
        "design",
        "mode",
        "subs",
        "delivered",
        "dropped",
        "conflated",
        "M/s",
        "p50 us",
        "p99 us",
        "max us",
        "allocs",
        "KiB"
    );
    for subscribers in [50, 200, 500, 1_000] {
        for paced in [true, false] {
            for design in ["serial with drop", "task per delivery", "worker pool", "lanes"] {
                let once = || {
                    measure(|| match design {
                        "serial with drop" => queues::serial(subscribers, paced),
                        "task per delivery" => queues::task_per_delivery(subscribers, paced),
                        "worker pool" => queues::worker_pool(subscribers, paced),
                        _ => lanes::lanes(subscribers, paced),
                    })
                };
                once();
                let runs: Vec<_> = (0..args.runs).map(|_| once()).collect();
                let (per_second, per_second_spread) = median(&runs, |r| r.per_second);
                let (p99_us, p99_us_spread) = median(&runs, |r| r.p99_us);
                let of = |what: &dyn Fn(&Run) -> f64| median(&runs, what).0;
                let finding = Finding {
                    design,
                    mode: if paced { "paced" } else { "flat out" },
                    subscribers,
                    runs: args.runs,
                    delivered: of(&|r| r.delivered as f64) as u64,
                    dropped: of(&|r| r.dropped as f64) as u64,
                    conflated: of(&|r| r.conflated as f64) as u64,
                    per_second,
                    per_second_spread,
                    p50_us: of(&|r| r.p50_us),
                    p99_us,
                    p99_us_spread,
                    max_us: of(&|r| r.max_us),
                    allocations: of(&|r| r.allocations as f64) as usize,
                    allocated_bytes: of(&|r| r.allocated_bytes as f64) as usize,
                };
                println!(
                    "{:<18} {:<8} {:>5} {:>9} {:>8} {:>9} {:>7.2} {:>8.0} {:>8.0} {:>8.0} {:>9} {:>9}",
                    finding.design,
                    finding.mode,
                    subscribers,
                    finding.delivered,
                    finding.dropped,
                    finding.conflated,
                    per_second / 1e6,
                    finding.p50_us,
                    p99_us,
                    finding.max_us,
                    finding.allocations,
                    finding.allocated_bytes / 1024
                );
                findings.push(finding);
            }
        }
    }
    if let Some(out) = args.out {
        std::fs::write(out, serde_json::to_string_pretty(&findings)?)?;
    }
    Ok(())
}

/// Nanoseconds since `since`.
pub fn ns_since(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}
