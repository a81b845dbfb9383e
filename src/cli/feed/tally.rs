//! What a feed has done, and how it is told.

use super::schedule::Rate;
use crate::upstream::publish::batch::Outcome;
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// Counts of one run. Belongs to one task.
#[derive(Default)]
pub struct Tally {
    n_published: Cell<u64>,
    n_older: Cell<u64>,
    n_failed: Cell<u64>,
    n_repaired: Cell<u64>,
    behind: Cell<Duration>,
    behind_ever: Cell<Duration>,
    last_failure: RefCell<Option<String>>,
    told: Cell<Told>,
}

/// What the last line was about.
#[derive(Clone, Copy, Default)]
struct Told {
    n_published: u64,
    elapsed: Duration,
}

impl Tally {
    /// A batch of `n` quotes went through the links.
    pub fn note(&self, n: usize, outcome: &Outcome) {
        let (n_failed, n_older) = (outcome.failed.len(), outcome.older.len());
        add(&self.n_published, n - n_failed - n_older);
        add(&self.n_failed, n_failed);
        add(&self.n_older, n_older);
        self.keep_failure(outcome);
    }

    /// `n` quotes that had failed were tried again.
    pub fn note_repair(&self, n: usize, outcome: &Outcome) {
        let n_older = outcome.older.len();
        let n_repaired = n - outcome.failed.len() - n_older;
        add(&self.n_published, n_repaired);
        add(&self.n_repaired, n_repaired);
        add(&self.n_older, n_older);
        self.keep_failure(outcome);
    }

    /// A batch was made so late.
    pub fn note_behind(&self, behind: Duration) {
        self.behind.set(self.behind.get().max(behind));
        self.behind_ever.set(self.behind_ever.get().max(behind));
    }

    /// Why a quote failed last.
    pub fn last_failure(&self) -> Option<String> {
        self.last_failure.borrow().clone()
    }

    fn keep_failure(&self, outcome: &Outcome) {
        if let Some((_, failure)) = outcome.failed.last() {
            *self.last_failure.borrow_mut() = Some(failure.to_string());
        }
    }

    /// One line about the time since the last one.
    pub fn line(&self, elapsed: Duration) -> String {
        let told = self.told.replace(Told { n_published: self.n_published.get(), elapsed });
        let rate = per_second(self.n_published.get() - told.n_published, elapsed - told.elapsed);
        let behind = self.behind.take().as_secs_f64() * 1e3;
        let (n_failed, n_repaired) = (self.n_failed.get(), self.n_repaired.get());
        format!(
            "{:>6.0} s {rate:>9.0} quotes/s, {behind:.1} ms behind, {n_failed} failed, {n_repaired} repaired\n",
            elapsed.as_secs_f64()
        )
    }

    /// The whole run in a few lines; `cpu` is what the process used.
    pub fn summary(&self, elapsed: Duration, rate: Rate, cpu: Duration) -> String {
        let n = self.n_published.get();
        let wanted = match rate {
            Rate::PerSecond(rate) => format!("{rate}/s were wanted"),
            Rate::Max => "as fast as possible".to_owned(),
        };
        let failure = self.last_failure().map(|why| format!("last failure: {why}\n")).unwrap_or_default();
        format!(
            "published {n} quotes in {:.2} s: {:.0}/s, {wanted}; at most {:.1} ms behind schedule\n\
             {} failed, {} of them repaired, {} refused as older than what is stored\n\
             {:.2} µs of CPU time per quote\n{failure}",
            elapsed.as_secs_f64(),
            per_second(n, elapsed),
            self.behind_ever.get().as_secs_f64() * 1e3,
            self.n_failed.get(),
            self.n_repaired.get(),
            self.n_older.get(),
            cpu.as_secs_f64() * 1e6 / (n.max(1) as f64),
        )
    }
}

fn add(counter: &Cell<u64>, n: usize) {
    counter.set(counter.get() + n as u64);
}

fn per_second(n: u64, time: Duration) -> f64 {
    n as f64 / time.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::commands::failure::{Failure, Kind};
    use std::num::NonZeroU64;

    #[test]
    fn a_line_is_about_its_own_time_and_the_summary_about_all() {
        let tally = Tally::default();
        let failure = Failure { kind: Kind::ClusterDown, node: None, text: "down".into() };
        let outcome = Outcome { failed: vec![(0, failure)], older: vec![1] };
        tally.note(1_002, &outcome);
        tally.note_behind(Duration::from_millis(7));
        assert_eq!(
            tally.line(Duration::from_secs(1)),
            "     1 s      1000 quotes/s, 7.0 ms behind, 1 failed, 0 repaired\n"
        );
        tally.note_repair(1, &Outcome::default());
        assert_eq!(
            tally.line(Duration::from_secs(2)),
            "     2 s         1 quotes/s, 0.0 ms behind, 1 failed, 1 repaired\n"
        );
        let rate = Rate::PerSecond(NonZeroU64::new(500).expect("not zero"));
        let summary = tally.summary(Duration::from_secs(2), rate, Duration::from_millis(1));
        assert_eq!(
            summary,
            "published 1001 quotes in 2.00 s: 500/s, 500/s were wanted; at most 7.0 ms behind schedule\n\
             1 failed, 1 of them repaired, 1 refused as older than what is stored\n\
             1.00 µs of CPU time per quote\nlast failure: cluster_down: down\n"
        );
    }
}
