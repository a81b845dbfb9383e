//! A child process with the verbs that tests use on servers. It ends with its owner.

use super::wait::wait_for;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open};
use std::fs::DirEntry;
use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A running child process.
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts `command` without input.
    pub fn spawn(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).spawn();
        let program = command.get_program().to_string_lossy().into_owned();
        Self { child: child.unwrap_or_else(|e| panic!("can't start {program}: {e}; see tests/setup.sh")) }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The child itself, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Asks it to end (SIGTERM).
    pub fn stop(&self) {
        self.signal(Signal::TERM);
    }

    /// Ends it at once (SIGKILL) and waits for the end.
    pub fn kill9(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops it from running (SIGSTOP); its sockets stay open.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it run on (SIGCONT).
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends any signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end.
    pub async fn ended(&mut self, within: Duration) -> ExitStatus {
        let child = &mut self.child;
        wait_for("the end of the process", within, || std::future::ready(child.try_wait().unwrap())).await
    }

    /// Resident memory in bytes.
    pub fn rss(&self) -> u64 {
        self.status_field("VmRSS:") * 1024
    }

    /// Threads of the process.
    pub fn n_threads(&self) -> u64 {
        self.status_field("Threads:")
    }

    /// Its own child processes, as nginx's workers are.
    pub fn children(&self) -> io::Result<Vec<u32>> {
        let list = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid()))?;
        Ok(list.split_whitespace().map(|pid| pid.parse().unwrap()).collect())
    }

    /// Open descriptors.
    pub fn n_descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// Its sockets, shared with it, so that their options can be read.
    pub fn sockets(&self) -> Vec<socket2::Socket> {
        let process = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()).unwrap();
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap();
        let is_socket = |entry: &DirEntry| {
            let target = std::fs::read_link(entry.path());
            target.is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
        };
        let sockets = entries.filter_map(Result::ok).filter(is_socket).filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            // A connection may have ended since the folder was read.
            Some(pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()?.into())
        });
        sockets.collect()
    }

    /// Processor time used so far, user and system together.
    pub fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        // Fields are counted behind the name, which may hold blanks and brackets itself.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
    }

    fn status_field(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Children of a process that was killed live on, unless they watch it as browsers' do.
        let children = if self.is_running() { self.children().unwrap_or_default() } else { Vec::new() };
        // Each fails only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for child in children.into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
            let _ = kill_process(child, Signal::KILL);
        }
    }
}
