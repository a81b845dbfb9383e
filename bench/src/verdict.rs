//! When a run can't be trusted, and what a server under test may not do.

use crate::outcome::Outcome;

/// Cores that others may use; more bends p99 near saturation by factors.
const FOREIGN_CORES: f64 = 0.25;
/// Publications may leave so late at p99, in milliseconds, before the publisher measures itself.
const PUBLISHER_LAG_MS: f64 = 5.0;
/// The wall clock may run away so far, in microseconds; receive stamps are wall-clock time.
const DRIFT_US: i64 = 2_000;

/// Why the measurement isn't one.
pub fn invalid(o: &Outcome, publisher_errors: u64, drift_us: i64) -> Vec<String> {
    let mut reasons = Vec::new();
    if o.foreign_cores < 0.0 || o.foreign_cores > FOREIGN_CORES {
        reasons.push(format!("others used {:.2} cores", o.foreign_cores));
    }
    let tolerated = PUBLISHER_LAG_MS.max(o.latency.p99 * 0.25);
    if o.publisher_lag.p99 > tolerated {
        reasons.push(format!("the publisher lagged {:.1} ms at p99", o.publisher_lag.p99));
    }
    if o.own_lag.p99 > 2.0 && o.own_lag.p99 > o.latency.p99 * 0.5 {
        reasons.push(format!("the load generator lagged {:.1} ms at p99", o.own_lag.p99));
    }
    if publisher_errors > 0 {
        reasons.push(format!("{publisher_errors} publications were refused"));
    }
    if drift_us.abs() > DRIFT_US {
        reasons.push(format!("the wall clock moved by {drift_us} µs"));
    }
    reasons
}

/// What the server did wrong.
pub fn faults(o: &Outcome, strangers: u64) -> Vec<String> {
    let mut faults = Vec::new();
    let mut check = |n: u64, what: &str| {
        if n > 0 {
            faults.push(format!("{n} {what}"));
        }
    };
    check(o.unconverged, "subscriptions never showed the newest version");
    check(o.backwards, "events went backwards");
    check(o.duplicates, "events came twice");
    check(strangers, "events of topics that weren't subscribed");
    if o.scenario.disturbance.slow == 0.0 {
        check(o.ends.values().sum(), "sessions ended");
    }
    if let Some(accounting) = &o.accounting
        && accounting.agrees == Some(false)
    {
        faults.push(format!(
            "accounting differs: gateway {:?}, received {} skipped {} lost {}",
            accounting.gateway, accounting.received, accounting.skipped, accounting.lost
        ));
    }
    faults
}
