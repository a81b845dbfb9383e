//! The goals, each as a figure of a scenario with a limit and an aim.

/// One goal.
pub struct Goal {
    /// In words.
    pub what: &'static str,
    /// The scenario that shows it.
    pub scenario: &'static str,
    /// The figure.
    pub figure: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// What must be reached.
    pub least: f64,
    /// What should be reached.
    pub aim: f64,
    /// Whether more is better.
    pub more: bool,
}

const fn at_most(
    what: &'static str,
    scenario: &'static str,
    figure: &'static str,
    unit: &'static str,
    least: f64,
    aim: f64,
) -> Goal {
    Goal { what, scenario, figure, unit, least, aim, more: false }
}

const fn at_least(
    what: &'static str,
    scenario: &'static str,
    figure: &'static str,
    unit: &'static str,
    least: f64,
    aim: f64,
) -> Goal {
    Goal { what, scenario, figure, unit, least, aim, more: true }
}

/// Every goal that a scenario shows.
pub const GOALS: [Goal; 20] = [
    at_most("Memory per idle session, WebSocket", "idle-ws", "rss_per_session_kib", "KiB", 4.0, 2.0),
    at_most("Memory per idle session, SSE", "idle-sse", "rss_per_session_kib", "KiB", 4.0, 2.0),
    at_most("10,000 sessions ready", "idle-ws", "connect_s", "s", 5.0, 2.0),
    at_most("10,000 × 20, 50,000/s: p99", "ws-10k-uniform-50k", "p99_ms", "ms", 10.0, 4.0),
    at_most(
        "10,000 × 20, 50,000/s: CPU per delivery",
        "ws-10k-uniform-50k",
        "server_cpu_us",
        "µs",
        12.0,
        9.0,
    ),
    at_most("10,000 × 20, 100,000/s: p99", "ws-10k-uniform-100k", "p99_ms", "ms", 100.0, 30.0),
    at_most("10,000 × 20, 200,000/s: p99", "ws-10k-uniform-200k", "p99_ms", "ms", 150.0, 50.0),
    at_least("10,000 × 20, 200,000/s: fresh", "ws-10k-uniform-200k", "fresh", "", 0.96, 0.96),
    at_least("10,000 × 20, 1 M/s: fresh per second", "ws-10k-uniform-1m", "fresh_per_s", "/s", 7e5, 8e5),
    at_most("10,000 × 20, 1 M/s: p99", "ws-10k-uniform-1m", "p99_ms", "ms", 250.0, 150.0),
    at_most("Whole-market bursts, 1 M/s: p99", "ws-10k-burst-1m", "p99_ms", "ms", 200.0, 125.0),
    at_most(
        "Whole-market bursts, 1 M/s: CPU per delivery",
        "ws-10k-burst-1m",
        "server_cpu_us",
        "µs",
        0.8,
        0.6,
    ),
    at_most("Whole-market bursts, 1 M/s: lost", "ws-10k-burst-1m", "lost", "", 0.0, 0.0),
    at_most("5,000 × 20, 50,000/s: p99", "ws-5k-uniform-50k", "p99_ms", "ms", 5.0, 2.0),
    at_most("5,000 × 20, 100,000/s: p99", "ws-5k-uniform-100k", "p99_ms", "ms", 40.0, 15.0),
    at_most("5,000 × 20, 200,000/s: p99", "ws-5k-uniform-200k", "p99_ms", "ms", 150.0, 75.0),
    at_most("Handshake p50, 32 in flight, WebSocket", "handshake-ws-32", "handshake_p50_ms", "ms", 2.0, 1.0),
    at_most("Handshake p50, 32 in flight, SSE", "handshake-sse-32", "handshake_p50_ms", "ms", 2.0, 1.0),
    at_most("SSE, 50,000/s: p99", "sse-10k-uniform-50k", "p99_ms", "ms", 10.0, 4.0),
    at_most("SSE, 50,000/s: CPU per delivery", "sse-10k-uniform-50k", "server_cpu_us", "µs", 12.0, 9.0),
];

impl Goal {
    /// How a value stands to the goal.
    pub fn judge(&self, value: f64) -> &'static str {
        let reaches = |limit: f64| if self.more { value >= limit } else { value <= limit };
        match (reaches(self.aim), reaches(self.least)) {
            (true, _) => "aim reached",
            (false, true) => "reached",
            (false, false) => "not reached",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_goal_names_a_scenario_that_exists() {
        let names: Vec<_> = crate::scenario::all().into_iter().map(|s| s.name).collect();
        for goal in &GOALS {
            assert!(names.iter().any(|n| n == goal.scenario), "{}", goal.scenario);
        }
        assert_eq!(GOALS[0].judge(3.0), "reached");
        assert_eq!(GOALS[8].judge(6e5), "not reached");
    }
}
