//! `tickbridge check-config`: would `serve` accept this configuration?

use super::{ConfigArgs, Failure};
use crate::config::load::Purpose;

/// Report everything that is wrong with the configuration, or "ok".
///
/// Each problem is shown with key, value, source and rule; any problem ends in exit code 64. The
/// configuration is judged as `serve` would judge it, without connecting anywhere.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArgs,
}

/// Runs the command.
///
/// # Errors
/// The problems of the configuration.
pub fn run(args: &Args) -> Result<(), Failure> {
    let loaded = args.config.load(Purpose::Serve)?;
    let notes: String = loaded.notes.iter().map(|note| format!("note: {note}\n")).collect();
    super::print(&format!("{notes}ok\n"))
}
