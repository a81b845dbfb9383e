//! Medians and spreads of a scenario's valid runs.

use crate::outcome::Outcome;
use crate::scenario::Scenario;
use serde::Serialize;
use std::collections::BTreeMap;

/// A median with the lowest and the highest value.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figure {
    /// The median.
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl Figure {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.retain(|v| v.is_finite());
        values.sort_by(f64::total_cmp);
        let n = values.len();
        let (&low, &high) = (values.first()?, values.last()?);
        Some(Self { median: (values[(n - 1) / 2] + values[n / 2]) / 2.0, low, high })
    }
}

/// One scenario on one machine.
#[derive(Serialize)]
pub struct Summary {
    /// The machine, its kernel's version included.
    pub machine: String,
    /// What was run.
    pub scenario: Scenario,
    /// Runs that count.
    pub valid_runs: usize,
    /// Runs that don't, with their reasons.
    pub invalid: Vec<String>,
    /// What the server did wrong in any run.
    pub faults: Vec<String>,
    /// Whether each comparable run's counters agreed; absent where none could be compared.
    pub accounting_agrees: Option<bool>,
    /// The figures by name.
    pub figures: BTreeMap<&'static str, Figure>,
}

type Reading = fn(&Outcome) -> f64;

const READINGS: [(&str, Reading); 26] = [
    ("offered_per_s", |o| o.offered_per_s),
    ("fresh_per_s", |o| o.fresh_per_s),
    ("fresh", |o| o.fresh),
    ("conflated", |o| o.conflated),
    ("lost", |o| o.lost),
    ("p50_ms", |o| o.latency.p50),
    ("p90_ms", |o| o.latency.p90),
    ("p95_ms", |o| o.latency.p95),
    ("p99_ms", |o| o.latency.p99),
    ("p999_ms", |o| o.latency.p999),
    ("max_ms", |o| o.latency.max),
    ("stale_p99_ms", |o| o.staleness.p99),
    ("server_cpu_us", |o| server(&o.cpu_us)),
    ("server_cores", |o| server(&o.cores)),
    ("redis_cpu_us", |o| o.cpu_us.get("redis").copied().unwrap_or(f64::NAN)),
    ("client_cpu_us", |o| o.cpu_us.get("client").copied().unwrap_or(f64::NAN)),
    ("proxy_cpu_us", |o| ["nginx", "caddy"].iter().filter_map(|r| o.cpu_us.get(*r)).sum()),
    ("events_per_read", |o| o.events_per_read),
    ("rss_mib", |o| o.memory.idle as f64 / 1024.0),
    ("rss_end_mib", |o| o.memory.end as f64 / 1024.0),
    ("rss_per_session_kib", |o| o.memory.per_session),
    ("connect_s", |o| o.connect_s),
    ("storm_s", |o| o.storm_s.unwrap_or(f64::NAN)),
    ("handshake_p50_ms", |o| o.handshake.p50),
    ("handshake_p95_ms", |o| o.handshake.p95),
    ("foreign_cores", |o| o.foreign_cores),
];

fn server(by_role: &BTreeMap<String, f64>) -> f64 {
    ["gateway", "nchan", "nats"].iter().filter_map(|r| by_role.get(*r)).sum()
}

impl Summary {
    /// One summary per machine and scenario that was run, by machine and in the given order of names.
    pub fn all(outcomes: &[Outcome], order: &[String]) -> Vec<Self> {
        let mut groups: BTreeMap<(&str, usize, &str), Vec<&Outcome>> = BTreeMap::new();
        for outcome in outcomes {
            let name = outcome.scenario.name.as_str();
            let place = order.iter().position(|n| n == name).unwrap_or(order.len());
            groups.entry((&outcome.machine, place, name)).or_default().push(outcome);
        }
        groups.into_values().map(|group| Self::of(&group)).collect()
    }

    fn of(group: &[&Outcome]) -> Self {
        let valid: Vec<_> = group.iter().filter(|o| o.invalid.is_empty()).collect();
        let figures = READINGS
            .iter()
            .filter_map(|(name, read)| Some((*name, Figure::of(valid.iter().map(|o| read(o)).collect())?)))
            .collect();
        let said = |pick: fn(&Outcome) -> &Vec<String>| {
            group.iter().flat_map(|o| pick(o).iter().map(|s| format!("run {}: {s}", o.run))).collect()
        };
        let agreed: Vec<bool> = group.iter().filter_map(|o| o.accounting.as_ref()?.agrees).collect();
        Self {
            machine: group[0].machine.clone(),
            scenario: group[0].scenario.clone(),
            valid_runs: valid.len(),
            invalid: said(|o| &o.invalid),
            faults: said(|o| &o.faults),
            accounting_agrees: (!agreed.is_empty()).then(|| agreed.iter().all(|&a| a)),
            figures,
        }
    }

    /// A figure, if any run gave it.
    pub fn figure(&self, name: &str) -> Option<Figure> {
        self.figures.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::Figure;

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        let figure = Figure::of(vec![4.0, 1.0, f64::NAN, 2.0, 9.0]).expect("values");
        assert_eq!((figure.low, figure.median, figure.high), (1.0, 3.0, 9.0));
        assert!(Figure::of(vec![f64::NAN]).is_none());
    }
}
