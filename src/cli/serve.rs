//! `tickbridge serve`: runs the gateway until it is asked to end.

use std::future::Future;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use super::reload::Reload;
use super::{ConfigArgs, Failure};
use crate::app::{App, Outcome};
use crate::config::load::{Loaded, Purpose};
use crate::config::print;
use crate::config::raw::Sources;
use crate::shutdown::Requests;
use crate::telemetry;

/// Run the gateway.
///
/// SIGTERM and SIGINT drain it: sessions are told to reconnect elsewhere and the process ends with 0 within
/// drain.deadline. A second one stops it at once. SIGHUP reads the configuration again.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArgs,
}

/// Runs the command.
///
/// # Errors
/// The configuration has problems, the start failed, or a core task did.
pub fn run(args: &Args) -> Result<(), Failure> {
    gateway(args.config.sources(), |_| std::future::ready(()))
}

/// Time for threads that still block when everything else has ended.
const LAST_BREATH: Duration = Duration::from_secs(1);

/// Runs a gateway, and `beside` as long as it runs.
///
/// # Errors
/// As for the command.
pub fn gateway<F>(sources: Sources, beside: impl FnOnce(&App) -> F) -> Result<(), Failure>
where
    F: Future<Output = ()> + Send + 'static,
{
    let loaded = crate::config::load::load(&sources, Purpose::Serve)?;
    let filter = telemetry::init(&loaded.config.log)
        .map_err(|error| Failure::Failed(format!("{error}; check log.filter")))?;
    announce(&loaded);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("edge").build();
    let runtime = runtime.map_err(|error| {
        Failure::Failed(format!("the runtime cannot start ({error}); check the limits of threads"))
    })?;
    let done = runtime.block_on(async {
        // Before anything can be ready: a signal that comes right after must drain and not kill.
        let requests = Requests::from_signals()
            .map_err(|error| Failure::Failed(format!("signals cannot be handled ({error}); try again")))?;
        let app = App::build(loaded.config.clone()).map_err(|error| {
            Failure::Failed(format!("cannot start: {error:#}; correct it there or configure something else"))
        })?;
        let addresses = app.addresses();
        tracing::info!(listen.public = %addresses.public, listen.admin = %addresses.admin, "listening");
        let reload = Reload::new(sources, loaded.config.clone(), filter, app.live());
        // Both end with the runtime: neither holds anything that a drain would have to wait for.
        let tasks = TaskTracker::new();
        tasks.spawn(reload.follow(requests.clone()));
        tasks.spawn(beside(&app));
        match app.run(requests).await {
            Outcome::Clean => Ok(()),
            Outcome::Failed => Err(Failure::Failed("a core task failed; its error is in the log".into())),
        }
    });
    runtime.shutdown_timeout(LAST_BREATH);
    done
}

fn announce(loaded: &Loaded) {
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        config.effective = print::as_line(loaded),
        "starting"
    );
    for note in &loaded.notes {
        tracing::warn!("{note}");
    }
}
