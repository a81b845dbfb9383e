//! The load-generating threads: each has its own epoll set and its share of the sessions.
//!
//! Edge-triggered, one read per wake-up when the data fits, nothing allocated per message. Every
//! thirty-second session asks the kernel for receive stamps, from which the load generator's own lag
//! is told.
//!
//! Not here: what the bytes mean (`client::session`).

pub mod dialect;
pub mod session;

use crate::clock::now_us;
use crate::tally::Tally;
use crate::token::Signer;
use anyhow::{Context as _, Result};
use dialect::{Dialect, push_topics};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use session::{Behind, Context, Plan, Session, Stage};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::Duration;

/// One session in so many has receive stamps.
const STAMPED: usize = 32;
/// Source addresses in use; each gives about 28,000 ports towards one server port.
const SOURCES: usize = 100;
const READ_BUFFER: usize = 256 * 1024;

/// What a thread is told to do.
pub enum Command {
    /// Connect every session that isn't, at most so many at a time.
    Connect(usize),
    /// Begin so many sessions in all, in their order.
    Widen(usize),
    /// Drop every connection and connect again, at most so many at a time.
    Reconnect(usize),
    /// Publishing begins.
    Begin(Arc<Plan>),
    /// Make this share of the sessions stop reading.
    Slow(f64),
    /// Leave and join a topic so many times a second.
    Churn(f64),
    /// Say what hasn't arrived.
    Behind(SyncSender<Behind>),
    /// Give the counts.
    Report(SyncSender<Tally>),
    /// End.
    Stop,
}

/// Connections that end by plan and are begun again.
#[derive(Clone, Copy)]
pub struct Cycle {
    /// Live events after which a connection has done its work; 0 ends it when it is live.
    pub events: u32,
    /// Connections per session.
    pub rounds: u32,
    /// No connection is begun after this, microseconds since the Unix epoch.
    pub until_us: u64,
}

/// What can be seen of a thread from outside at any time.
#[derive(Default)]
pub struct Progress {
    /// Sessions that are receiving.
    pub live: AtomicUsize,
    /// Sessions that ended without our doing, or couldn't be connected.
    pub ended: AtomicUsize,
    /// Live events received.
    pub delivered: AtomicU64,
    /// The thread's kernel id.
    pub tid: AtomicUsize,
}

/// What a thread is made of.
pub struct Setup {
    /// Whom to speak to.
    pub dialect: Dialect,
    /// Where; sessions go round these.
    pub servers: Vec<SocketAddr>,
    /// Tokens.
    pub signer: Arc<Signer>,
    /// Whether sessions come and go.
    pub cycle: Option<Cycle>,
    /// The thread's sessions.
    pub sessions: Vec<Session>,
    /// Seen from outside.
    pub progress: Arc<Progress>,
}

struct Worker {
    setup: Setup,
    epoll: Epoll,
    buf: Vec<u8>,
    plain: Vec<u8>,
    tally: Tally,
    plan: Option<Arc<Plan>>,
    waiting: VecDeque<usize>,
    /// Refused for the moment, to be tried again from these times on.
    later: Vec<(u64, usize)>,
    in_flight: usize,
    cap: usize,
    widened: usize,
    churn: Option<(f64, u64, u64)>,
    sampler: u32,
}

/// Runs a thread until it is told to stop.
///
/// # Errors
/// When epoll itself fails.
pub fn run(setup: Setup, commands: &Receiver<Command>) -> Result<()> {
    let tid = nix::unistd::gettid().as_raw();
    setup.progress.tid.store(tid as usize, Ordering::Relaxed);
    let mut worker = Worker {
        setup,
        epoll: Epoll::new(EpollCreateFlags::empty()).context("create epoll")?,
        buf: vec![0; READ_BUFFER],
        plain: Vec::new(),
        tally: Tally::default(),
        plan: None,
        waiting: VecDeque::new(),
        later: Vec::new(),
        in_flight: 0,
        cap: 0,
        widened: 0,
        churn: None,
        sampler: 0,
    };
    let mut events = vec![EpollEvent::empty(); 1_024];
    loop {
        match commands.try_recv() {
            Ok(Command::Stop) | Err(TryRecvError::Disconnected) => break,
            Ok(command) => {
                worker.obey(command);
                continue;
            }
            Err(TryRecvError::Empty) => {}
        }
        worker.connect_some();
        worker.churn_some();
        let timeout = EpollTimeout::from(if worker.churn.is_some() { 2u8 } else { 20 });
        let n = match worker.epoll.wait(&mut events, timeout) {
            Ok(n) => n,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(e) => return Err(e).context("wait for events"),
        };
        for event in &events[..n] {
            worker.ready(event.data() as usize, event.events());
        }
        worker.setup.progress.delivered.store(worker.tally.delivered, Ordering::Relaxed);
    }
    worker.close_all();
    Ok(())
}

impl Worker {
    fn obey(&mut self, command: Command) {
        match command {
            Command::Connect(cap) => {
                self.cap = cap;
                let idle = self.setup.sessions.iter().enumerate().filter(|(_, s)| s.stage == Stage::Idle);
                self.waiting = idle.map(|(i, _)| i).collect();
            }
            Command::Widen(n) => {
                self.cap = usize::MAX;
                self.waiting.extend(self.widened..n.min(self.setup.sessions.len()));
                self.widened = self.widened.max(n);
            }
            Command::Reconnect(cap) => {
                self.close_all();
                self.obey(Command::Connect(cap));
            }
            Command::Begin(plan) => self.plan = Some(plan),
            Command::Slow(share) => {
                let step = if share > 0.0 { (1.0 / share).round() as usize } else { usize::MAX };
                for session in self.setup.sessions.iter_mut().step_by(step.max(1)) {
                    if let Some(stream) = &session.stream {
                        let _ = self.epoll.delete(stream);
                        session.slow = true;
                    }
                }
            }
            Command::Churn(per_second) => {
                self.churn = (per_second > 0.0).then_some((per_second, now_us(), 0));
            }
            Command::Behind(answer) => {
                let mut sum = Behind::default();
                if let Some(plan) = &self.plan {
                    for one in self.setup.sessions.iter().map(|s| s.behind(plan)) {
                        sum.topics += one.topics;
                        sum.versions += one.versions;
                        sum.in_window += one.in_window;
                        sum.owed_in_window += one.owed_in_window;
                    }
                }
                let _ = answer.send(sum);
            }
            Command::Report(answer) => {
                let _ = answer.send(self.tally.clone());
            }
            Command::Stop => {}
        }
    }

    fn close_all(&mut self) {
        for session in &mut self.setup.sessions {
            if let Some(stream) = session.stream.take() {
                // A reset leaves no TIME_WAIT behind, of which repeated runs would collect too many.
                let _ = Socket::from(stream).set_linger(Some(Duration::ZERO));
            }
            session.reset();
        }
        self.in_flight = 0;
        self.later.clear();
        self.setup.progress.live.store(0, Ordering::Relaxed);
    }

    fn connect_some(&mut self) {
        let now = now_us();
        let due = self.later.extract_if(.., |(at, _)| *at <= now).map(|(_, index)| index);
        self.waiting.extend(due);
        while self.in_flight < self.cap {
            let Some(index) = self.waiting.pop_front() else { return };
            self.in_flight += 1;
            if let Err(e) = self.connect(index) {
                self.end(index, &format!("connect: {e}"));
            }
        }
    }

    fn connect(&mut self, index: usize) -> Result<()> {
        let session = &mut self.setup.sessions[index];
        session.reset();
        session.begun_us = now_us();
        session.stage = Stage::Connecting;
        let server = self.setup.servers[session.number % self.setup.servers.len()];
        let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
        let source = Ipv4Addr::new(127, 0, 0, 2 + (session.number % SOURCES) as u8);
        socket.bind(&SocketAddr::from((source, 0)).into())?;
        socket.set_tcp_nodelay(true)?;
        if session.number.is_multiple_of(STAMPED) {
            setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        }
        match socket.connect(&server.into()) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(nix::errno::Errno::EINPROGRESS as i32) => {}
            Err(e) => return Err(e.into()),
        }
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET | EpollFlags::EPOLLRDHUP;
        self.epoll.add(&socket, EpollEvent::new(flags, index as u64))?;
        session.stream = Some(socket.into());
        Ok(())
    }

    fn ready(&mut self, index: usize, flags: EpollFlags) {
        if self.setup.sessions[index].stage == Stage::Connecting
            && flags.intersects(EpollFlags::EPOLLOUT | EpollFlags::EPOLLERR)
            && let Err(e) = self.connected(index)
        {
            return self.end(index, &format!("connect: {e}"));
        }
        if flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP) {
            self.readable(index);
        }
    }

    fn connected(&mut self, index: usize) -> Result<()> {
        let session = &mut self.setup.sessions[index];
        let Some(stream) = &mut session.stream else { return Ok(()) };
        if let Some(e) = stream.take_error()? {
            return Err(e.into());
        }
        session.stage = Stage::Head;
        let (signer, number) = (&self.setup.signer, session.number);
        let request = self.setup.dialect.request(&session.topics, &|| signer.token(number));
        self.tally.sent_bytes += request.len() as u64;
        stream.write_all(&request)?;
        // From here on only reading matters; each write-ready edge would cost a wake-up.
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET | EpollFlags::EPOLLRDHUP;
        self.epoll.modify(&*stream, &mut EpollEvent::new(flags, index as u64))?;
        Ok(())
    }

    fn readable(&mut self, index: usize) {
        // Taken out, so that the session and its connection can be used side by side.
        let Some(mut stream) = self.setup.sessions[index].stream.take() else { return };
        match self.read_all(index, &mut stream) {
            Ok(()) if self.has_done_its_work(index) => self.finish(index, stream),
            Ok(()) => self.setup.sessions[index].stream = Some(stream),
            Err(reason) => self.end(index, &reason),
        }
    }

    fn read_all(&mut self, index: usize, stream: &mut TcpStream) -> Result<(), String> {
        loop {
            let session = &mut self.setup.sessions[index];
            let kept = session.tail.len();
            if self.buf.len() < kept + READ_BUFFER / 2 {
                self.buf.resize(kept + READ_BUFFER, 0);
            }
            self.buf[..kept].copy_from_slice(&session.tail);
            let room = &mut self.buf[kept..];
            let full = room.len();
            let got = if session.number.is_multiple_of(STAMPED) {
                read_stamped(stream, room)
            } else {
                stream.read(room).map(|n| (n, None))
            };
            let (n, stamp_us) = match got {
                Ok((0, _)) => return Err("end of the connection".into()),
                Ok(got) => got,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(format!("read: {}", e.kind())),
            };
            let now = now_us();
            self.tally.reads += 1;
            self.tally.bytes += n as u64;
            if let (Some(stamp), Some(plan)) = (stamp_us, &self.plan)
                && plan.measures(now)
            {
                self.tally.own_lag.record(now.saturating_sub(stamp));
            }
            let was = session.stage;
            let mut cx = Context {
                dialect: self.setup.dialect,
                signer: &self.setup.signer,
                plan: self.plan.as_deref(),
                streams: self.setup.cycle.is_some(),
                tally: &mut self.tally,
                now_us: now,
                out: Vec::new(),
                plain: std::mem::take(&mut self.plain),
                sampler: self.sampler,
            };
            let result = session.consume(&self.buf[..kept + n], &mut cx);
            let out = std::mem::take(&mut cx.out);
            self.plain = std::mem::take(&mut cx.plain);
            self.sampler = cx.sampler;
            if was != Stage::Live && session.stage == Stage::Live {
                self.in_flight = self.in_flight.saturating_sub(1);
                self.setup.progress.live.fetch_add(1, Ordering::Relaxed);
            }
            let used = result?;
            if used < kept + n {
                session.tail = self.buf[used..kept + n].to_vec();
            } else if kept > 0 {
                session.tail = Vec::new();
            }
            if !out.is_empty() {
                self.tally.sent_bytes += out.len() as u64;
                stream.write_all(&out).map_err(|e| format!("write: {}", e.kind()))?;
            }
            if n < full {
                return Ok(());
            }
        }
    }

    fn has_done_its_work(&self, index: usize) -> bool {
        let session = &self.setup.sessions[index];
        self.setup.cycle.is_some_and(|c| session.stage == Stage::Live && session.received >= c.events)
    }

    /// Ends a connection that has done its work, and begins the next one of its session.
    fn finish(&mut self, index: usize, stream: TcpStream) {
        let Some(cycle) = self.setup.cycle else { return };
        let _ = Socket::from(stream).set_linger(Some(Duration::ZERO));
        let session = &mut self.setup.sessions[index];
        let now = now_us();
        self.tally.completion.record(now.saturating_sub(session.begun_us));
        self.tally.completed += 1;
        session.reset();
        session.rounds += 1;
        if session.rounds < cycle.rounds && now < cycle.until_us {
            self.waiting.push_back(index);
        }
        self.setup.progress.live.fetch_sub(1, Ordering::Relaxed);
        self.connect_some();
    }

    /// The session is over, and not by our doing.
    fn end(&mut self, index: usize, reason: &str) {
        let session = &mut self.setup.sessions[index];
        match session.stage {
            Stage::Idle => return,
            Stage::Live => {
                self.setup.progress.live.fetch_sub(1, Ordering::Relaxed);
            }
            _ => self.in_flight = self.in_flight.saturating_sub(1),
        }
        session.reset();
        if reason.contains(" 503 ") {
            // What a browser's client does: back after a second or so, not all at the same moment.
            self.later.push((now_us() + fastrand::u64(500_000..1_500_000), index));
            self.tally.put_off += 1;
            return;
        }
        *self.tally.ends.entry(reason.to_owned()).or_default() += 1;
        self.setup.progress.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn churn_some(&mut self) {
        let Some((per_second, since_us, done)) = &mut self.churn else { return };
        let due = ((now_us() - *since_us) as f64 / 1e6 * *per_second) as u64;
        let n = due.saturating_sub(*done);
        *done = due;
        for _ in 0..n {
            let index = fastrand::usize(..self.setup.sessions.len());
            let session = &mut self.setup.sessions[index];
            if session.stage != Stage::Live || session.slow {
                continue;
            }
            let Some(stream) = &mut session.stream else { continue };
            let topic = [session.topics[fastrand::usize(..session.topics.len())]];
            let mut out = Vec::new();
            push_topics(&mut out, "unsubscribe", &topic);
            push_topics(&mut out, "subscribe", &topic);
            if let Err(e) = stream.write_all(&out) {
                self.end(index, &format!("write: {}", e.kind()));
            }
        }
    }
}

fn read_stamped(stream: &TcpStream, room: &mut [u8]) -> std::io::Result<(usize, Option<u64>)> {
    let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
    let mut parts = [IoSliceMut::new(room)];
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty())?;
    let stamp = message.cmsgs().ok().and_then(|mut all| {
        all.find_map(|one| match one {
            ControlMessageOwned::ScmTimestampns(at) => {
                Some(at.tv_sec() as u64 * 1_000_000 + at.tv_nsec() as u64 / 1_000)
            }
            _ => None,
        })
    });
    Ok((message.bytes, stamp))
}
