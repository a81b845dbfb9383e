//! The `tickbridge` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    tickbridge::cli::run(std::env::args_os())
}
