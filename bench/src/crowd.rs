//! The load-generating threads as one.
//!
//! Not here: what a thread does (`client`).

use crate::client::dialect::Dialect;
use crate::client::session::{Behind, Session};
use crate::client::{self, Command, Cycle, Progress, Setup};
use crate::clock::now_us;
use crate::interest::Watch;
use crate::process;
use crate::server::gateway::SECRET;
use crate::tally::Tally;
use crate::token::Signer;
use anyhow::{Result, ensure};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

/// How long sessions may take to connect.
const PATIENCE: Duration = Duration::from_secs(60);

/// The load-generating threads.
pub struct Crowd {
    threads: Vec<Thread>,
}

struct Thread {
    commands: SyncSender<Command>,
    progress: Arc<Progress>,
    handle: JoinHandle<Result<()>>,
}

impl Crowd {
    /// Starts `n_threads` with a share of the sessions each, which don't connect yet.
    pub fn start(
        dialect: Dialect,
        entrances: &[SocketAddr],
        watch: &Watch,
        cycle: Option<Cycle>,
        n_threads: usize,
    ) -> Self {
        let signer = Arc::new(Signer::new(SECRET));
        let threads = (0..n_threads).map(|t| {
            let mine = (t..watch.topics.len()).step_by(n_threads);
            let setup = Setup {
                dialect,
                servers: entrances.to_vec(),
                signer: Arc::clone(&signer),
                cycle,
                sessions: mine.map(|n| Session::new(n, watch.topics[n].clone())).collect(),
                progress: Arc::default(),
            };
            let progress = Arc::clone(&setup.progress);
            let (commands, receiver) = sync_channel(64);
            let handle = std::thread::spawn(move || client::run(setup, &receiver));
            Thread { commands, progress, handle }
        });
        Self { threads: threads.collect() }
    }

    /// Tells every thread.
    pub fn tell(&self, command: impl Fn() -> Command) {
        for thread in &self.threads {
            let _ = thread.commands.send(command());
        }
    }

    /// Sessions that are receiving.
    pub fn live(&self) -> usize {
        self.threads.iter().map(|t| t.progress.live.load(Ordering::Relaxed)).sum()
    }

    /// Sessions that ended without the load generator's doing.
    pub fn ended(&self) -> usize {
        self.threads.iter().map(|t| t.progress.ended.load(Ordering::Relaxed)).sum()
    }

    /// Live events received.
    pub fn delivered(&self) -> u64 {
        self.threads.iter().map(|t| t.progress.delivered.load(Ordering::Relaxed)).sum()
    }

    /// CPU nanoseconds of the threads.
    pub fn cpu_ns(&self) -> u64 {
        let tids = self.threads.iter().map(|t| t.progress.tid.load(Ordering::Relaxed) as i32);
        tids.map(process::thread_cpu_ns).sum()
    }

    /// Waits until all sessions are live and gives the seconds since `since_us`.
    ///
    /// # Errors
    /// After a minute, or when a twentieth of them has failed.
    pub fn wait_live(&self, n: usize, since_us: u64) -> Result<f64> {
        let ended = self.ended();
        while self.live() < n {
            let waited = now_us() - since_us;
            let failed = self.ended() - ended;
            ensure!(
                waited < PATIENCE.as_micros() as u64 && failed * 20 < n.max(20),
                "{} of {n} sessions are live, {failed} failed: {:?}",
                self.live(),
                self.tally().ends
            );
            sleep(Duration::from_millis(2));
        }
        Ok((now_us() - since_us) as f64 / 1e6)
    }

    /// The sum of the threads' counts.
    pub fn tally(&self) -> Tally {
        let (sender, receiver) = sync_channel(64);
        self.tell(|| Command::Report(sender.clone()));
        drop(sender);
        let mut sum = Tally::default();
        receiver.iter().for_each(|one: Tally| sum.add(&one));
        sum
    }

    /// What hasn't arrived.
    pub fn behind(&self) -> Behind {
        let (sender, receiver) = sync_channel(64);
        self.tell(|| Command::Behind(sender.clone()));
        drop(sender);
        receiver.iter().fold(Behind::default(), |sum, one| Behind {
            topics: sum.topics + one.topics,
            versions: sum.versions + one.versions,
            in_window: sum.in_window + one.in_window,
            owed_in_window: sum.owed_in_window + one.owed_in_window,
        })
    }

    /// Ends the threads.
    pub fn stop(self) -> Result<()> {
        self.tell(|| Command::Stop);
        for thread in self.threads {
            thread.handle.join().map_err(|_| anyhow::anyhow!("a load-generating thread panicked"))??;
        }
        Ok(())
    }
}
