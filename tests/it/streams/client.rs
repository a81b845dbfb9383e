//! A client of streams over plain TCP, the same for both transports, cheap enough for a thousand of them.
//!
//! It checks on the way that ids rise, that the SSE name and id of an event are those of its JSON, and keeps the
//! cursor with which it could resume.

use crate::support::http::{BodyDecoder, Head, head_of_request};
use crate::support::wait::in_time;
use serde_json::Value;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest wait for anything that is due, on a machine that has much else to do.
pub const DUE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    Sse,
    Ws,
}

pub const BOTH: [Transport; 2] = [Transport::Sse, Transport::Ws];

/// One thing that came.
#[derive(Clone, PartialEq, Debug)]
pub enum Item {
    /// A message, by its type.
    Message { kind: String, json: String },
    /// A WebSocket's close frame.
    Closed(u16, String),
    /// The response was ended, or the connection after a close.
    End,
    /// The connection broke.
    Cut,
}

impl Item {
    pub fn json(&self) -> Value {
        match self {
            Self::Message { json, .. } => serde_json::from_str(json).unwrap(),
            other => panic!("a message is due, not {other:?}"),
        }
    }

    pub fn is(&self, wanted: &str) -> bool {
        matches!(self, Self::Message { kind, .. } if kind == wanted)
    }
}

pub struct Client {
    pub stream: TcpStream,
    pub transport: Transport,
    /// The id of the last message that had one.
    pub cursor: Option<String>,
    pub n_heartbeats: usize,
    pub retry_ms: Option<u64>,
    /// How long the answer to the request took.
    pub handshake: Duration,
    decoder: Option<BodyDecoder>,
    bytes: Vec<u8>,
    closed: bool,
}

impl Client {
    /// Opens a stream; anything but a session is given back as the status that it is.
    pub async fn open(
        to: SocketAddr,
        transport: Transport,
        query: &str,
        headers: &[(&str, &str)],
    ) -> Result<Self, u16> {
        in_time("the answer to a request for a stream", DUE, Self::connect(to, transport, query, headers))
            .await
    }

    /// Opens stream `id` from `cursor`, if there is one, and otherwise from the start.
    pub async fn resume(to: SocketAddr, transport: Transport, id: &str, cursor: Option<&str>) -> Self {
        let query = match (transport, cursor) {
            (Transport::Ws, Some(cursor)) => format!("id={id}&from={cursor}"),
            _ => format!("id={id}"),
        };
        let headers: Vec<_> = cursor
            .filter(|_| transport == Transport::Sse)
            .map(|c| ("Last-Event-ID", c))
            .into_iter()
            .collect();
        let opened = Self::open(to, transport, &query, &headers).await;
        opened.unwrap_or_else(|status| panic!("{transport:?} {query} refused: {status}"))
    }

    async fn connect(
        to: SocketAddr,
        transport: Transport,
        query: &str,
        headers: &[(&str, &str)],
    ) -> Result<Self, u16> {
        let begun = Instant::now();
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut headers = headers.to_vec();
        let path = match transport {
            Transport::Sse => "/stream/sse",
            Transport::Ws => "/ws/stream",
        };
        if transport == Transport::Ws {
            headers.extend([
                ("Connection", "Upgrade"),
                ("Upgrade", "websocket"),
                ("Sec-WebSocket-Version", "13"),
                ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ]);
        }
        stream.write_all(&head_of_request(to, "GET", &format!("{path}?{query}"), &headers)).await.unwrap();
        let mut bytes = Vec::new();
        let (head, start) = loop {
            if let Some(parsed) = Head::parse(&bytes) {
                break parsed;
            }
            let n = stream.read_buf(&mut bytes).await.unwrap();
            assert_ne!(n, 0, "the connection ended before the head: {bytes:?}");
        };
        let handshake = begun.elapsed();
        let (decoder, expected) = match transport {
            Transport::Sse => (Some(BodyDecoder::new(&head)), 200),
            Transport::Ws => (None, 101),
        };
        if head.status != expected {
            return Err(head.status);
        }
        let mut client = Self {
            stream,
            transport,
            cursor: None,
            n_heartbeats: 0,
            retry_ms: None,
            handshake,
            decoder,
            bytes: Vec::new(),
            closed: false,
        };
        client.take_in(&bytes[start..]);
        Ok(client)
    }

    fn take_in(&mut self, bytes: &[u8]) {
        match &mut self.decoder {
            Some(decoder) => self.bytes.extend(decoder.decode(bytes)),
            None => self.bytes.extend_from_slice(bytes),
        }
    }

    /// The next thing that comes, heartbeats apart.
    pub async fn next(&mut self) -> Item {
        in_time("something on the stream", DUE, self.take()).await
    }

    /// The next message of this kind; entries before it are not skipped.
    pub async fn next_of(&mut self, kind: &str) -> Value {
        let item = self.next().await;
        assert!(item.is(kind), "{kind} is due, not {item:?}");
        item.json()
    }

    /// What comes within `time`, if anything does.
    pub async fn next_within(&mut self, time: Duration) -> Option<Item> {
        tokio::time::timeout(time, self.take()).await.ok()
    }

    /// The texts of the next `n` entries, which must come without anything between.
    pub async fn texts(&mut self, n: usize) -> Vec<String> {
        let mut texts = Vec::with_capacity(n);
        for _ in 0..n {
            texts.push(self.next_of("entry").await["data"].as_str().unwrap().to_owned());
        }
        texts
    }

    async fn take(&mut self) -> Item {
        loop {
            let item = match self.transport {
                Transport::Sse => self.sse_item(),
                Transport::Ws => self.ws_item().await,
            };
            if let Some(item) = item {
                if let Item::Message { kind, json } = &item {
                    self.note(kind, json);
                }
                return item;
            }
            if self.decoder.as_ref().is_some_and(|decoder| decoder.ended) {
                return Item::End;
            }
            let mut more = Vec::with_capacity(8 * 1024);
            match self.stream.read_buf(&mut more).await {
                Ok(n) if n > 0 => self.take_in(&more),
                _ if self.closed => return Item::End,
                _ => return Item::Cut,
            }
        }
    }

    fn note(&mut self, kind: &str, json: &str) {
        let Some(id) = member(json, "id") else { return };
        let place = |id: &str| {
            id.split_once('-').map(|(ms, seq)| (ms.parse::<u64>().unwrap(), seq.parse::<u64>().unwrap()))
        };
        // A loss moves back, and nothing else does.
        if let Some(before) = self.cursor.as_deref().filter(|_| kind != "lost") {
            assert!(place(before) < place(id), "{json} after {before}");
        }
        self.cursor = Some(id.to_owned());
    }

    fn sse_item(&mut self) -> Option<Item> {
        loop {
            let end = self.bytes.windows(2).position(|window| window == b"\n\n")?;
            let block: Vec<u8> = self.bytes.drain(..end + 2).collect();
            let block = std::str::from_utf8(&block).expect("SSE is UTF-8");
            let (mut name, mut id, mut data) = (None, None, None);
            for line in block.lines().filter(|line| !line.is_empty()) {
                let (field, value) = line.split_once(": ").expect("a field");
                match field {
                    "" => self.n_heartbeats += 1,
                    "retry" => self.retry_ms = value.parse().ok(),
                    "event" => name = Some(value),
                    "id" => id = Some(value),
                    "data" => assert!(data.replace(value).is_none(), "two lines of data: {block}"),
                    _ => panic!("an SSE field that nobody knows: {line:?}"),
                }
            }
            let Some(json) = data else { continue };
            let kind = member(json, "type").expect("a type");
            assert_eq!(name.unwrap_or("entry"), kind, "{block}");
            assert_eq!(id, member(json, "id"), "{block}");
            return Some(Item::Message { kind: kind.to_owned(), json: json.to_owned() });
        }
    }

    async fn ws_item(&mut self) -> Option<Item> {
        loop {
            let (first, second) = (*self.bytes.first()?, *self.bytes.get(1)?);
            let (header, len) = match second {
                0..=125 => (2, usize::from(second)),
                126 => (4, usize::from(u16::from_be_bytes(self.bytes.get(2..4)?.try_into().unwrap()))),
                _ => (10, u64::from_be_bytes(self.bytes.get(2..10)?.try_into().unwrap()) as usize),
            };
            if self.bytes.len() < header + len {
                return None;
            }
            let payload = self.bytes[header..header + len].to_vec();
            self.bytes.drain(..header + len);
            match first {
                0x81 => {
                    let json = String::from_utf8(payload).expect("text");
                    let kind = member(&json, "type").expect("a type").to_owned();
                    if kind == "ping" {
                        self.n_heartbeats += 1;
                        continue;
                    }
                    return Some(Item::Message { kind, json });
                }
                // The server may have closed behind it.
                0x89 => drop(self.stream.write_all(&[0x8a, 0x80, 0, 0, 0, 0]).await),
                0x8a => {}
                0x88 => {
                    self.closed = true;
                    let _ = self.stream.write_all(&[0x88, 0x80, 0, 0, 0, 0]).await;
                    let code = u16::from_be_bytes(payload[..2].try_into().unwrap());
                    return Some(Item::Closed(code, String::from_utf8(payload[2..].to_vec()).unwrap()));
                }
                other => panic!("a frame that begins with {other:#x}"),
            }
        }
    }
}

/// The text of a member whose value needs no unescaping.
fn member<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    // Producers' texts come behind the members that are looked for.
    let start = json.find(&format!("\"{name}\":\""))? + name.len() + 4;
    let known = json[..start].matches("\",\"").count() <= 3;
    known.then(|| json[start..].split('"').next()).flatten()
}
