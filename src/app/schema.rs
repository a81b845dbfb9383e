//! Whether the functions in Redis are those that this program knows: looked at from the start to the end.
//!
//! Invariants:
//! - Only the first look can end the gateway. Later, functions that are newer than this program mean a
//!   rollout, in which it is still needed.
//! - A look that fails changes nothing; why a primary doesn't answer is told elsewhere.
//!
//! Not here: what a primary has (`upstream::migrate`).

use crate::metrics::upstream::UpstreamMetrics;
use crate::upstream::commands::Commands;
use crate::upstream::migrate::{self, Standing};
use crate::upstream::slots::NodeAddr;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Between two tries until all primaries have answered.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// Between two looks after that. An answer is a few kilobytes per primary; a primary that lost its functions
/// is told of within this time and the alert's patience.
const LOOK: Duration = Duration::from_secs(20);

/// Looks until `end`. Ends before it if the first look finds that a newer program has been there.
pub async fn watch(commands: &Commands, metrics: &UpstreamMetrics, end: &CancellationToken) {
    let mut seen: Option<Vec<(NodeAddr, Option<Standing>)>> = None;
    loop {
        match migrate::check(commands).await {
            Ok(standings) if !standings.is_empty() => {
                metrics.set_schema(standings.iter().map(|(_, standing)| standing.as_ref()));
                if seen.as_ref() != Some(&standings) {
                    tell(&standings);
                }
                let ahead = |standing: &Option<Standing>| matches!(standing, Some(Standing::Ahead(_)));
                if seen.is_none() && standings.iter().any(|(_, standing)| ahead(standing)) {
                    tracing::error!("ends, because the functions in Redis are newer than this program");
                    return;
                }
                seen = Some(standings);
            }
            _ => {}
        }
        let pause = if seen.is_none() { FIRST_LOOK } else { LOOK };
        if end.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
    }
}

/// Logs what is not as it should be.
fn tell(standings: &[(NodeAddr, Option<Standing>)]) {
    for (node, standing) in standings {
        match standing {
            None | Some(Standing::Current) => {}
            Some(Standing::Behind(missing)) => tracing::warn!(
                redis.node = %node,
                schema.missing = ?missing,
                "the functions in Redis are older than this program: run `tickbridge migrate` with this configuration"
            ),
            Some(Standing::Ahead(newest)) => tracing::warn!(
                redis.node = %node,
                schema.newest = newest,
                "the functions in Redis are newer than this program: run a newer tickbridge"
            ),
        }
    }
}
