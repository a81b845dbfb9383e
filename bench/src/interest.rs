//! Who watches what: each session's topics, and how many sessions each instrument has.
//!
//! Deterministic for a seed, so that two runs of a scenario offer the same work.

use serde::{Deserialize, Serialize};

/// How sessions choose their topics.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interest {
    /// Every instrument is as likely.
    Uniform,
    /// A share of the sessions watches instrument 1; all other choices follow Zipf's law.
    Hot {
        /// Share of the sessions on instrument 1.
        share: f64,
    },
}

/// The outcome for a whole run. Instruments are counted from 0 here and from 1 on the wire.
pub struct Watch {
    /// Topics of each session.
    pub topics: Vec<Box<[u16]>>,
    /// Sessions of each instrument.
    pub watchers: Vec<u32>,
    /// How likely a publication is for each instrument, added up; the last one is 1.
    pub popularity: Vec<f64>,
}

impl Watch {
    /// Draws `n_topics` different ones of `n_instruments` for each of `n_sessions`.
    pub fn new(
        interest: Interest,
        n_sessions: usize,
        n_topics: usize,
        n_instruments: usize,
        seed: u64,
    ) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let weights: Vec<f64> = (0..n_instruments)
            .map(|i| match interest {
                Interest::Uniform => 1.0,
                Interest::Hot { .. } => 1.0 / (i + 1) as f64,
            })
            .collect();
        let total: f64 = weights.iter().sum();
        let popularity: Vec<f64> = weights
            .iter()
            .scan(0.0, |sum, w| {
                *sum += w / total;
                Some(*sum)
            })
            .collect();
        let mut watchers = vec![0; n_instruments];
        let topics = (0..n_sessions)
            .map(|_| {
                let mut chosen: Vec<u16> = Vec::with_capacity(n_topics);
                if let Interest::Hot { share } = interest
                    && rng.f64() < share
                {
                    chosen.push(0);
                }
                while chosen.len() < n_topics.min(n_instruments) {
                    let topic = pick(&popularity, rng.f64());
                    let is_hot = matches!(interest, Interest::Hot { .. }) && topic == 0;
                    if !is_hot && !chosen.contains(&topic) {
                        chosen.push(topic);
                    }
                }
                for &topic in &chosen {
                    watchers[usize::from(topic)] += 1;
                }
                chosen.into()
            })
            .collect();
        Self { topics, watchers, popularity }
    }

    /// Deliveries that one publication causes on average.
    pub fn mean_fan_out(&self) -> f64 {
        let mut before = 0.0;
        let mut mean = 0.0;
        for (&sum, &watchers) in self.popularity.iter().zip(&self.watchers) {
            mean += (sum - before) * f64::from(watchers);
            before = sum;
        }
        mean
    }
}

/// The instrument at `at` (0..1) of the added-up weights.
pub fn pick(popularity: &[f64], at: f64) -> u16 {
    popularity.partition_point(|&sum| sum <= at).min(popularity.len() - 1) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_interest_spreads_and_never_repeats_a_topic() {
        let watch = Watch::new(Interest::Uniform, 1_000, 20, 1_000, 1);
        assert!(watch.topics.iter().all(|t| {
            let mut sorted = t.to_vec();
            sorted.sort_unstable();
            sorted.dedup();
            sorted.len() == 20
        }));
        assert_eq!(watch.watchers.iter().sum::<u32>(), 20_000);
        assert!((watch.mean_fan_out() - 20.0).abs() < 0.001);
    }

    #[test]
    fn the_hot_instrument_has_its_share() {
        let watch = Watch::new(Interest::Hot { share: 0.4 }, 10_000, 20, 1_000, 1);
        assert!((3_800..4_200).contains(&watch.watchers[0]), "{}", watch.watchers[0]);
    }
}
