//! A TCP proxy whose faults are named verbs.
//!
//! Bytes wait in order within each direction of a connection; a connection that is delayed never
//! overtakes itself.

use super::ports;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::sync::Mutex;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Chunks that may wait in one direction; more press back on the sender, as a full link does.
const QUEUED_CHUNKS: usize = 1024;

/// What is done to the bytes at the moment.
#[derive(Clone, Default)]
struct Weather {
    /// Every byte takes so much longer, in either direction.
    delay: Duration,
    /// What the server sends waits so long.
    response_hold: Duration,
    /// After a request that contains these bytes, the server's answers wait so long.
    hold_after: Option<(Vec<u8>, Duration)>,
    /// Bytes are taken and lost, connections stay open.
    black_hole: bool,
    /// Rises to end all connections.
    cuts: u64,
    /// Rises to end the far side of all connections only.
    reconnects: u64,
    server: Option<SocketAddr>,
}

/// A proxy in front of one server.
pub struct ChaosProxy {
    port: u16,
    weather: watch::Sender<Weather>,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

impl ChaosProxy {
    /// Starts a proxy in front of `server` (`host:port`), on a free port.
    pub async fn start(server: &str) -> Self {
        let server = Some(server.parse().unwrap());
        let (weather, _) = watch::channel(Weather { server, ..Weather::default() });
        let proxy = Self { port: ports::free(), weather, accepting: Mutex::default() };
        proxy.accept();
        proxy
    }

    /// The port of the proxy.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// `host:port` of the proxy.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Resets every connection and refuses new ones.
    pub fn cut(&self) {
        if let Some(task) = self.accepting.lock().unwrap().take() {
            task.abort();
        }
        self.drop_connections();
    }

    /// Resets every connection and accepts new ones.
    pub fn drop_connections(&self) {
        self.weather.send_modify(|weather| weather.cuts += 1);
    }

    /// Ends every fault. What a black hole took stays lost.
    pub fn restore(&self) {
        self.weather.send_modify(|w| {
            *w = Weather { cuts: w.cuts, reconnects: w.reconnects, server: w.server, ..Weather::default() };
        });
        if self.accepting.lock().unwrap().is_none() {
            self.accept();
        }
    }

    /// Makes every byte take so much longer, in either direction.
    pub fn delay(&self, time: Duration) {
        self.weather.send_modify(|weather| weather.delay = time);
    }

    /// Holds back everything that the server sends.
    pub fn hold_responses(&self, time: Duration) {
        self.weather.send_modify(|weather| weather.response_hold = time);
    }

    /// Holds back what the server sends on a connection after a request that contains `words`, once
    /// per request; other connections, such as those of subscriptions, are not held.
    pub fn hold_responses_to(&self, words: &str, time: Duration) {
        self.weather.send_modify(|weather| weather.hold_after = Some((words.into(), time)));
    }

    /// Loses every byte in both directions while connections stay open, as when packets are dropped.
    pub fn black_hole(&self) {
        self.weather.send_modify(|weather| weather.black_hole = true);
    }

    /// Leads new connections to another server; old ones stay where they are.
    pub fn lead_to(&self, server: &str) {
        let server = Some(server.parse().unwrap());
        self.weather.send_modify(|weather| weather.server = server);
    }

    /// Connects every client to another server, without a word to it, as proxies do that hide a failover.
    pub fn reconnect_to(&self, server: &str) {
        self.lead_to(server);
        self.weather.send_modify(|weather| weather.reconnects += 1);
    }

    fn accept(&self) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, self.port).into()).unwrap();
        let listener = socket.listen(1024).unwrap();
        let weather = self.weather.subscribe();
        *self.accepting.lock().unwrap() = Some(tokio::spawn(accept_loop(listener, weather)));
    }
}

impl Drop for ChaosProxy {
    fn drop(&mut self) {
        self.cut();
    }
}

async fn accept_loop(listener: TcpListener, weather: watch::Receiver<Weather>) {
    while let Ok((client, _)) = listener.accept().await {
        let mut weather = weather.clone();
        // A cut that falls between the accept and the first look must still end this connection.
        let cuts = weather.borrow().cuts;
        tokio::spawn(async move {
            let cut = loop {
                let (carried, mut changes) = (weather.clone(), weather.clone());
                let reconnects = weather.borrow().reconnects;
                tokio::select! {
                    () = carry(&client, carried) => break false,
                    _ = weather.wait_for(|w| w.cuts != cuts) => break true,
                    _ = changes.wait_for(|w| w.reconnects != reconnects) => {}
                }
            };
            if cut {
                // Closing without lingering sends a reset.
                let _ = socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO));
            }
        });
    }
}

/// Carries bytes both ways until both ways have ended.
async fn carry(client: &TcpStream, weather: watch::Receiver<Weather>) {
    let address = weather.borrow().server.expect("set at the start");
    let Ok(server) = TcpStream::connect(address).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let held_until = Mutex::new(Instant::now());
    tokio::join!(
        pump(client, &server, Way::Requests, &held_until, weather.clone()),
        pump(&server, client, Way::Responses, &held_until, weather),
    );
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Requests,
    Responses,
}

/// Carries bytes one way, each when its time has come.
async fn pump(
    from: &TcpStream,
    to: &TcpStream,
    way: Way,
    held_until: &Mutex<Instant>,
    weather: watch::Receiver<Weather>,
) {
    let (queue, mut waiting) = mpsc::channel::<(Instant, Vec<u8>)>(QUEUED_CHUNKS);
    let read = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Some(n) = read_some(from, &mut buffer).await {
            let chunk = buffer[..n].to_vec();
            let sky = weather.borrow().clone();
            let hold = if way == Way::Responses { sky.response_hold } else { Duration::ZERO };
            if let (Way::Requests, Some((words, time))) = (way, &sky.hold_after)
                && chunk.windows(words.len()).any(|window| window == words)
            {
                *held_until.lock().unwrap() = Instant::now() + *time;
            }
            if queue.send((Instant::now() + sky.delay + hold, chunk)).await.is_err() {
                break;
            }
        }
        drop(queue);
    };
    let write = async {
        while let Some((due, chunk)) = waiting.recv().await {
            let held = if way == Way::Responses { *held_until.lock().unwrap() } else { due };
            tokio::time::sleep_until(due.max(held)).await;
            let lost = weather.borrow().black_hole;
            if !lost && write_all(to, &chunk).await.is_none() {
                break;
            }
        }
        let _ = socket2::SockRef::from(to).shutdown(Shutdown::Write);
        waiting.close();
    };
    tokio::join!(read, write);
}

/// Reads what there is; `None` at the end.
async fn read_some(from: &TcpStream, buffer: &mut [u8]) -> Option<usize> {
    loop {
        from.readable().await.ok()?;
        match from.try_read(buffer) {
            Ok(0) => return None,
            Ok(n) => return Some(n),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
}

async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> Option<()> {
    while !bytes.is_empty() {
        to.writable().await.ok()?;
        match to.try_write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
    Some(())
}
