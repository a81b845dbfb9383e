//! `tickbridge print-config`: the configuration that results from all sources.

use super::{ConfigArgs, Failure};
use crate::config::load::Purpose;
use crate::config::print;

/// Print the effective configuration as TOML, each value with where it came from.
///
/// Secrets are redacted. The output can be used as a configuration file; secrets have to be given anew.
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
    super::print(&print::as_toml(&args.config.load(Purpose::Look)?))
}
