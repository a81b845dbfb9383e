//! The command line: subcommands, their results and exit codes.
//!
//! Invariants:
//! - Each command ends in one of three exit codes: 0, [`FAILED`], [`MISUSED`].
//! - What a command is asked to print goes to standard output; everything else, logs included, to
//!   standard error.
//!
//! Not here: what the commands do (one file each).

pub mod check_config;
pub mod demo;
pub mod feed;
pub mod health;
pub mod migrate;
pub mod pace;
pub mod print_config;
pub mod redis;
pub mod reload;
pub mod serve;
pub mod token;

use std::ffi::OsString;
use std::future::Future;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::load::{self, Loaded, Purpose};
use crate::config::problem::Problems;
use crate::config::raw::Sources;

/// Exit code of a start that failed, or of a core task that did.
pub const FAILED: u8 = 1;
/// Exit code of bad usage or configuration, as `EX_USAGE` of sysexits.h.
pub const MISUSED: u8 = 64;

/// Carries market prices from Redis to browsers over WebSocket and SSE.
///
/// Exit codes: 0 a clean stop, 1 a failed start or a failed core task, 64 bad usage or configuration.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::Args),
    Demo(demo::Args),
    CheckConfig(check_config::Args),
    PrintConfig(print_config::Args),
    Token(token::Args),
    Health(health::Args),
    Feed(feed::Args),
    Migrate(migrate::Args),
}

/// Where configuration comes from besides the environment.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ConfigArgs {
    /// A TOML file shaped like config/default.toml; may be given several times, the last one wins.
    ///
    /// Environment variables go over files: key a.b is also TICKBRIDGE_A__B.
    #[arg(long = "config", value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

impl ConfigArgs {
    /// The files and the environment.
    pub fn sources(&self) -> Sources {
        Sources::of_process(self.files.clone())
    }

    /// Reads the files and the environment.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn load(&self, purpose: Purpose) -> Result<Loaded, Failure> {
        Ok(load::load(&self.sources(), purpose)?)
    }
}

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It was asked for something that makes no sense. One sentence with the remedy.
    #[error("{0}")]
    Misused(String),
    /// The configuration is wrong.
    #[error(transparent)]
    Misconfigured(#[from] Problems),
    /// It could not be done. One sentence with the remedy.
    #[error("{0}")]
    Failed(String),
}

impl Failure {
    fn code(&self) -> ExitCode {
        match self {
            Self::Misused(_) | Self::Misconfigured(_) => ExitCode::from(MISUSED),
            Self::Failed(_) => ExitCode::from(FAILED),
        }
    }
}

/// Runs the command that the arguments name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing better is left to do when the help or the complaint can't be written.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(MISUSED) } else { ExitCode::SUCCESS };
        }
    };
    let done = match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::CheckConfig(args) => check_config::run(&args),
        Command::PrintConfig(args) => print_config::run(&args),
        Command::Token(args) => token::run(&args),
        Command::Health(args) => block_on(health::run(args)),
        Command::Feed(args) => block_on(feed::run(args)),
        Command::Migrate(args) => block_on(migrate::run(args)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "error: {failure}");
            failure.code()
        }
    }
}

/// Prints the result of a command.
///
/// # Errors
/// Standard output cannot be written. A reader that left, such as `head`, is no error.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::Failed(format!("standard output cannot be written ({error}); check where it leads")))
        }
        _ => Ok(()),
    }
}

/// Runs a command that waits for something, on one thread.
fn block_on(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Failure::Failed(format!("the runtime cannot start ({error}); check the limits of descriptors"))
    })?;
    runtime.block_on(command)
}
