//! The publications of a run, all drawn before it starts: which instrument, and when it is to be sent.
//!
//! The schedule never waits for the server (open loop). It is what latency, conflation and loss are
//! judged against: a version that nobody received is known here all the same.

use crate::interest::{Watch, pick};
use serde::{Deserialize, Serialize};

/// How publications are spread over time.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// Independent of each other (a Poisson process).
    Uniform,
    /// The whole market at one moment, as often as the rate asks for.
    Burst,
    /// Each instrument at equal intervals, each at its own phase, like the words of many answers.
    Regular,
}

/// One publication.
#[derive(Clone, Copy, Debug)]
pub struct Publication {
    /// When, in microseconds since the schedule's start.
    pub at_us: u64,
    /// The instrument, from 0.
    pub instrument: u16,
    /// Its version.
    pub seq: u32,
}

/// The version that every instrument has before the schedule starts.
pub const FIRST_SEQ: u32 = 1;

/// Every publication of a run, in order.
pub struct Schedule {
    /// In order of time.
    pub publications: Vec<Publication>,
    /// Times per instrument; version `FIRST_SEQ + 1 + i` is at index `i`.
    pub times: Vec<Vec<u64>>,
}

impl Schedule {
    /// Draws a schedule of `seconds` with `rate` deliveries per second.
    pub fn new(watch: &Watch, arrival: Arrival, rate: f64, seconds: f64, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
        let length_us = (seconds * 1e6) as u64;
        let n_instruments = watch.watchers.len();
        let mut times = vec![Vec::new(); n_instruments];
        let mut publications = Vec::new();
        let mut push = |at_us: u64, instrument: u16| {
            let times = &mut times[usize::from(instrument)];
            times.push(at_us);
            publications.push(Publication { at_us, instrument, seq: FIRST_SEQ + times.len() as u32 });
        };
        match arrival {
            Arrival::Uniform if rate > 0.0 => {
                let gap_us = 1e6 * watch.mean_fan_out() / rate;
                let mut at = 0.0;
                loop {
                    at -= gap_us * (1.0 - rng.f64()).ln();
                    if at >= length_us as f64 {
                        break;
                    }
                    push(at as u64, pick(&watch.popularity, rng.f64()));
                }
            }
            Arrival::Burst if rate > 0.0 => {
                let per_burst: u32 = watch.watchers.iter().sum();
                let gap_us = 1e6 * f64::from(per_burst) / rate;
                let mut order: Vec<u16> = (0..n_instruments as u16).collect();
                let mut at = gap_us / 2.0;
                while at < length_us as f64 {
                    rng.shuffle(&mut order);
                    order.iter().for_each(|&i| push(at as u64, i));
                    at += gap_us;
                }
            }
            Arrival::Regular if rate > 0.0 => {
                let per_round: u32 = watch.watchers.iter().sum();
                let gap_us = 1e6 * f64::from(per_round) / rate;
                let mut all: Vec<(u64, u16)> = Vec::new();
                for instrument in 0..n_instruments as u16 {
                    let mut at = gap_us * rng.f64();
                    while at < length_us as f64 {
                        all.push((at as u64, instrument));
                        at += gap_us;
                    }
                }
                all.sort_unstable();
                all.into_iter().for_each(|(at, instrument)| push(at, instrument));
            }
            Arrival::Uniform | Arrival::Burst | Arrival::Regular => {}
        }
        Self { publications, times }
    }

    /// The newest version of an instrument when all is sent.
    pub fn last_seq(&self, instrument: u16) -> u32 {
        FIRST_SEQ + self.times[usize::from(instrument)].len() as u32
    }

    /// When a version was to be sent, in microseconds since the start.
    pub fn at_us(&self, instrument: u16, seq: u32) -> Option<u64> {
        let index = seq.checked_sub(FIRST_SEQ + 1)?;
        self.times[usize::from(instrument)].get(index as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interest::Interest;

    #[test]
    fn both_arrivals_offer_the_rate() {
        let watch = Watch::new(Interest::Uniform, 1_000, 20, 1_000, 1);
        for arrival in [Arrival::Uniform, Arrival::Burst, Arrival::Regular] {
            let schedule = Schedule::new(&watch, arrival, 100_000.0, 10.0, 7);
            let owed = |p: &Publication| watch.watchers[usize::from(p.instrument)];
            let owed: u32 = schedule.publications.iter().map(owed).sum();
            assert!((950_000..1_050_000).contains(&owed), "{arrival:?} {owed}");
        }
    }

    #[test]
    fn versions_count_up_by_one() {
        let watch = Watch::new(Interest::Uniform, 10, 2, 20, 1);
        let schedule = Schedule::new(&watch, Arrival::Uniform, 1_000.0, 2.0, 7);
        let last = schedule.publications.last().expect("some");
        assert_eq!(schedule.at_us(last.instrument, last.seq), Some(last.at_us));
        assert_eq!(schedule.last_seq(last.instrument), last.seq);
        assert_eq!(schedule.at_us(last.instrument, FIRST_SEQ), None);
    }
}
