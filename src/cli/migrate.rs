//! `tickbridge migrate`: loads the functions of `migrations/` on every primary.

use super::Failure;
use super::redis::{RedisArgs, Servers};
use crate::upstream::migrate::{MigrateError, apply};

/// Load the functions that store and announce quotes in one step, on every primary.
///
/// Applying twice changes nothing, and programs that run meanwhile go on. Needed for channels per
/// instrument; Redis 7.0 or newer.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    redis: RedisArgs,
}

/// Runs the command. A primary that can't be migrated doesn't keep the others from it.
///
/// # Errors
/// Each primary that could not be migrated, with the remedy.
pub async fn run(args: Args) -> Result<(), Failure> {
    let servers = Servers::find(&args.redis.config()?).await?;
    let mut failures = Vec::new();
    for node in servers.commands.topology().all_primaries() {
        match apply(&servers.commands, &node).await {
            Ok(applied) => super::print(&format!("{applied}\n"))?,
            Err(error) => failures.push(with_remedy(&error)),
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(Failure::Failed(failures.join("; "))) }
}

fn with_remedy(error: &MigrateError) -> String {
    let remedy = match error {
        MigrateError::Ahead { .. } => "run the newer tickbridge instead",
        MigrateError::Unsupported(_) => "upgrade the server, or do without channels per instrument",
        MigrateError::Failed(_) => "run the command again when the server is well",
    };
    format!("{error}; {remedy}")
}
