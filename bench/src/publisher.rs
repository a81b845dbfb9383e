//! Sends a schedule's publications at their intended times, whatever the receiving side does.
//!
//! One thread drives several connections, each instrument always on the same one, so that versions
//! stay in order. A connection that doesn't take its bytes delays what follows on it; the intended
//! times don't move, so the delay shows in every latency.
//!
//! Not here: the shape of a publication (`publisher::wire`), when it is due (`schedule`).

pub mod wire;

use crate::clock::now_us;
use crate::schedule::Schedule;
use crate::tally::Latency;
use anyhow::{Context, Result};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use wire::{Version, push_command, slot_of_tag};

/// Where publications go.
#[derive(Clone, Debug)]
pub enum Feed {
    /// Redis: the price key, its time, then the message.
    Redis(RedisFeed),
    /// The plain client port of a NATS server.
    Nats(SocketAddr),
    /// The publisher location of nchan.
    Nchan(SocketAddr),
}

/// One Redis server or the primaries of a cluster.
#[derive(Clone, Debug)]
pub struct RedisFeed {
    /// Each primary with its slots; a standalone server has all.
    pub nodes: Vec<(SocketAddr, RangeInclusive<u16>)>,
    /// Partitions of the channel; 1 is the base channel alone.
    pub partitions: u32,
    /// Whether channels are sharded.
    pub sharded: bool,
}

impl RedisFeed {
    fn node_of(&self, tag: &str) -> usize {
        if self.nodes.len() == 1 {
            return 0;
        }
        let slot = slot_of_tag(tag.as_bytes());
        self.nodes.iter().position(|(_, slots)| slots.contains(&slot)).unwrap_or(0)
    }
}

/// What the publisher itself achieved.
pub struct Sent {
    /// From the intended time until the first attempt to hand it to the kernel.
    pub lag: Latency,
    /// Refusals by the receiving side.
    pub errors: u64,
    /// CPU nanoseconds of the thread.
    pub cpu_ns: u64,
}

struct Pipe {
    stream: TcpStream,
    out: Vec<u8>,
    written: usize,
    /// Whole requests that wait for the answer to the one before; only where answers are awaited.
    queue: VecDeque<Vec<u8>>,
    awaits: bool,
    answer: Vec<u8>,
}

impl Pipe {
    fn connect(addr: SocketAddr, hello: &[u8]) -> Result<Self> {
        let mut stream = TcpStream::connect(addr).with_context(|| format!("connect publisher to {addr}"))?;
        stream.set_nodelay(true)?;
        stream.write_all(hello)?;
        stream.set_nonblocking(true)?;
        let answer = Vec::new();
        Ok(Self { stream, out: Vec::new(), written: 0, queue: VecDeque::new(), awaits: false, answer })
    }

    fn flush(&mut self) -> Result<bool> {
        while self.written < self.out.len() {
            match self.stream.write(&self.out[self.written..]) {
                Ok(n) => self.written += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e).context("write to the receiving side"),
            }
        }
        self.out.clear();
        self.written = 0;
        Ok(true)
    }

    /// Reads what came back and counts refusals.
    fn drain(&mut self, scratch: &mut [u8]) -> Result<u64> {
        let mut errors = 0;
        loop {
            let n = match self.stream.read(scratch) {
                Ok(0) => anyhow::bail!("the receiving side closed the publisher's connection"),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(errors),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e).context("read from the receiving side"),
            };
            let got = &scratch[..n];
            if self.awaits {
                self.answer.extend_from_slice(got);
                if http_answer_complete(&self.answer) {
                    errors += u64::from(!self.answer.starts_with(b"HTTP/1.1 20"));
                    self.answer.clear();
                    self.awaits = false;
                }
            } else if memchr::memmem::find(got, b"\r\n-").is_some() || got[0] == b'-' {
                errors += 1;
            } else if got == b"PING\r\n" {
                self.out.extend_from_slice(b"PONG\r\n");
            }
            if n < scratch.len() {
                return Ok(errors);
            }
        }
    }

    fn next_request(&mut self) {
        if !self.awaits
            && let Some(request) = self.queue.pop_front()
        {
            self.out.extend_from_slice(&request);
            self.awaits = true;
        }
    }
}

fn http_answer_complete(answer: &[u8]) -> bool {
    let Some(head) = memchr::memmem::find(answer, b"\r\n\r\n") else { return false };
    let text = String::from_utf8_lossy(&answer[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|l| l.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    answer.len() >= head + 4 + length.unwrap_or(0)
}

/// The connections, ready to send.
pub struct Publisher {
    feed: Feed,
    pipes: Vec<Pipe>,
    per_node: usize,
    stores: bool,
    scratch: Vec<u8>,
    body: Vec<u8>,
}

impl Publisher {
    /// Connects `n` times, to each node of a cluster.
    ///
    /// # Errors
    /// When a connection is refused.
    pub fn connect(feed: Feed, n: usize) -> Result<Self> {
        let (addrs, hello): (Vec<_>, &[u8]) = match &feed {
            Feed::Redis(redis) => (redis.nodes.iter().map(|(a, _)| *a).collect(), b""),
            Feed::Nats(addr) => (vec![*addr], b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\n"),
            Feed::Nchan(addr) => (vec![*addr], b""),
        };
        let mut pipes = Vec::new();
        for addr in addrs {
            for _ in 0..n {
                pipes.push(Pipe::connect(addr, hello)?);
            }
        }
        Ok(Self { feed, pipes, per_node: n, stores: true, scratch: vec![0; 64 * 1024], body: Vec::new() })
    }

    /// From here on only messages are sent, and no keys written.
    pub fn without_keys(mut self) -> Self {
        self.stores = false;
        self
    }

    fn push(&mut self, version: Version) {
        let id = version.instrument;
        let lane = id as usize % self.per_node;
        self.body.clear();
        match &self.feed {
            Feed::Redis(redis) => {
                if self.stores {
                    let tag = format!("stock:{id}");
                    let key_pipe = redis.node_of(&tag) * self.per_node + lane;
                    version.stored(&mut self.body);
                    let out = &mut self.pipes[key_pipe].out;
                    let key = format!("market:current-price:{{{tag}}}");
                    push_command(out, &[b"SET", key.as_bytes(), &self.body, b"EX", b"300"]);
                    let key = format!("market:current-price-updated-at:{{{tag}}}");
                    let ms = (version.intended_us / 1_000).to_string();
                    push_command(out, &[b"SET", key.as_bytes(), ms.as_bytes(), b"EX", b"300"]);
                    self.body.clear();
                }
                version.payload(&mut self.body);
                let (command, channel, tag) = channel_of(redis, id);
                let pipe = redis.node_of(&tag) * self.per_node + lane;
                push_command(&mut self.pipes[pipe].out, &[command, channel.as_bytes(), &self.body]);
            }
            Feed::Nats(_) => {
                version.event(&mut self.body);
                let out = &mut self.pipes[lane].out;
                let _ = write!(out, "PUB quote.{id} {}\r\n", self.body.len());
                out.extend_from_slice(&self.body);
                out.extend_from_slice(b"\r\n");
            }
            Feed::Nchan(_) => {
                version.event(&mut self.body);
                let mut request = format!(
                    "POST /pub/{id} HTTP/1.1\r\nHost: bench\r\nContent-Length: {}\r\n\r\n",
                    self.body.len()
                )
                .into_bytes();
                request.extend_from_slice(&self.body);
                self.pipes[lane].queue.push_back(request);
                self.pipes[lane].next_request();
            }
        }
    }

    fn flush(&mut self) -> Result<bool> {
        let mut done = true;
        for pipe in &mut self.pipes {
            done &= pipe.flush()?;
            done &= pipe.queue.is_empty();
        }
        Ok(done)
    }

    fn drain(&mut self) -> Result<u64> {
        let mut errors = 0;
        for pipe in &mut self.pipes {
            errors += pipe.drain(&mut self.scratch)?;
            pipe.next_request();
        }
        Ok(errors)
    }

    /// Sends the first version of every instrument and waits until the receiving side has taken it.
    ///
    /// # Errors
    /// When a connection fails.
    pub fn seed(&mut self, n_instruments: usize) -> Result<()> {
        for id in 1..=n_instruments as u32 {
            self.push(Version::first(id));
        }
        let deadline = now_us() + 20_000_000;
        while !self.flush()? || self.pipes.iter().any(|p| p.awaits) {
            self.drain()?;
            anyhow::ensure!(now_us() < deadline, "the receiving side doesn't take the first versions");
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_millis(100));
        anyhow::ensure!(self.drain()? == 0, "the receiving side refuses the first versions");
        Ok(())
    }

    /// Sends the schedule from `start_us` on; ends early when `stop` is set.
    ///
    /// # Errors
    /// When a connection fails.
    pub fn run(mut self, schedule: &Arc<Schedule>, start_us: u64, stop: &AtomicBool) -> Result<Sent> {
        // Without this the kernel may oversleep each pause by 50 µs.
        let _ = nix::sys::prctl::set_timerslack(1);
        let mut sent = Sent { lag: Latency::default(), errors: 0, cpu_ns: 0 };
        let mut due: Vec<u64> = Vec::new();
        let mut rest = schedule.publications.iter().peekable();
        while !stop.load(Ordering::Relaxed) {
            let now = now_us();
            while let Some(p) = rest.next_if(|p| start_us + p.at_us <= now) {
                let intended_us = start_us + p.at_us;
                self.push(Version { instrument: u32::from(p.instrument) + 1, seq: p.seq, intended_us });
                due.push(intended_us);
            }
            let done = self.flush()?;
            // What the receiving side doesn't take at once is its delay, not the publisher's.
            let now = now_us();
            due.drain(..).for_each(|intended| sent.lag.record(now.saturating_sub(intended)));
            sent.errors += self.drain()?;
            let next = rest.peek().map(|p| start_us + p.at_us);
            let pause = match next {
                None if done => break,
                None => 200,
                Some(at) if done => at.saturating_sub(now_us()),
                Some(at) => at.saturating_sub(now_us()).min(200),
            };
            if pause > 0 {
                // Bounded, so that `stop` is seen.
                std::thread::sleep(Duration::from_micros(pause.min(50_000)));
            }
        }
        std::thread::sleep(Duration::from_millis(50));
        sent.errors += self.drain()?;
        sent.cpu_ns = crate::process::thread_cpu_ns(nix::unistd::gettid().as_raw());
        Ok(sent)
    }
}

fn channel_of(redis: &RedisFeed, id: u32) -> (&'static [u8], String, String) {
    const BASE: &str = "market:price-updated";
    let partition = id % redis.partitions.max(1);
    match (redis.sharded, redis.partitions) {
        (true, 0 | 1) => (b"SPUBLISH", BASE.into(), BASE.into()),
        (true, _) => (b"SPUBLISH", format!("{BASE}:{{{partition}}}"), partition.to_string()),
        (false, 0 | 1) => (b"PUBLISH", BASE.into(), BASE.into()),
        (false, _) => (b"PUBLISH", format!("{BASE}:{partition}"), partition.to_string()),
    }
}
