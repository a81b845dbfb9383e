//! An SSE client over plain TCP, which shows every line that the server sent.

use super::gateway::Gateway;
use super::http::{Answer, BodyDecoder, Head, head_of_request};
use super::wait::in_time;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest wait for anything that is due.
const DUE: Duration = Duration::from_secs(5);

/// One thing that came.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// An event, `name` empty for unnamed ones.
    Event {
        /// The `event:` field.
        name: String,
        /// The `id:` field, if the event had one.
        id: Option<String>,
        /// The `data:` lines joined.
        data: String,
    },
    /// A comment line without its colon.
    Comment(String),
    /// A `retry:` field.
    Retry(u64),
    /// The stream's end.
    End,
}

/// An open stream.
pub struct Sse {
    stream: TcpStream,
    /// Status and headers of the answer.
    pub head: Head,
    decoder: BodyDecoder,
    text: Vec<u8>,
    items: VecDeque<Item>,
    /// The newest id.
    pub last_id: Option<String>,
}

impl Sse {
    /// Opens a stream of topics as `token`'s user.
    pub async fn open(gateway: &Gateway, token: &str, topics: &str) -> Self {
        Self::resume(gateway, token, topics, None).await
    }

    /// [`Sse::open`] with the id of an earlier stream.
    pub async fn resume(gateway: &Gateway, token: &str, topics: &str, last_id: Option<&str>) -> Self {
        let bearer = format!("Bearer {token}");
        let mut headers = vec![("Authorization", bearer.as_str())];
        headers.extend(last_id.map(|id| ("Last-Event-ID", id)));
        let path = format!("/market/sse?topics={topics}");
        let opened = Self::connect(gateway.public, &path, &headers).await;
        opened.unwrap_or_else(|answer| panic!("{path} refused: {answer:?}"))
    }

    /// Sends a request; anything but a stream is given back as the answer that it is.
    ///
    /// # Errors
    /// The refusal.
    pub async fn connect(to: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Result<Self, Answer> {
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(&head_of_request(to, "GET", path, headers)).await.unwrap();
        let mut bytes = Vec::new();
        let (head, start) = in_time("the head of an SSE answer", DUE, async {
            loop {
                if let Some(parsed) = Head::parse(&bytes) {
                    return parsed;
                }
                let n = stream.read_buf(&mut bytes).await.unwrap();
                assert_ne!(n, 0, "the connection ended before the head: {bytes:?}");
            }
        })
        .await;
        let mut decoder = BodyDecoder::new(&head);
        let mut text = decoder.decode(&bytes[start..]);
        if head.status != 200 {
            let length: usize = head.header("content-length").parse().unwrap_or(0);
            while text.len() < length && !decoder.ended {
                let mut more = Vec::new();
                in_time("the body of a refusal", DUE, stream.read_buf(&mut more)).await.unwrap();
                text.extend(decoder.decode(&more));
            }
            return Err(Answer { head, body: String::from_utf8(text).unwrap() });
        }
        Ok(Self { stream, head, decoder, text, items: VecDeque::new(), last_id: None })
    }

    /// The next thing that comes.
    pub async fn next(&mut self) -> Item {
        in_time("something on the SSE stream", DUE, self.take()).await
    }

    /// What comes within `time`, if anything does.
    pub async fn next_within(&mut self, time: Duration) -> Option<Item> {
        tokio::time::timeout(time, self.take()).await.ok()
    }

    /// The data of the next event named `name`; other things are skipped.
    pub async fn next_named(&mut self, name: &str) -> String {
        in_time(&format!("an SSE event named {name:?}"), DUE, async {
            loop {
                match self.take().await {
                    Item::Event { name: found, data, .. } if found == name => return data,
                    Item::End => panic!("the stream ended before an event named {name:?}"),
                    _ => {}
                }
            }
        })
        .await
    }

    /// Text of the acknowledgement.
    pub async fn acknowledgement(&mut self) -> String {
        self.next_named("subscribe").await
    }

    /// Text of the next quote event.
    pub async fn next_event(&mut self) -> String {
        loop {
            let text = self.next_named("").await;
            // Statuses come as unnamed events, too.
            if text.starts_with(r#"{"type":"event""#) {
                return text;
            }
        }
    }

    /// Waits for the stream's end.
    pub async fn ended(&mut self, within: Duration) {
        in_time("the end of the SSE stream", within, async { while self.take().await != Item::End {} }).await;
    }

    async fn take(&mut self) -> Item {
        loop {
            if let Some(item) = self.items.pop_front() {
                return item;
            }
            while let Some(end) = self.text.windows(2).position(|window| window == b"\n\n") {
                let block: Vec<u8> = self.text.drain(..end + 2).collect();
                self.read_block(std::str::from_utf8(&block).expect("SSE is UTF-8"));
            }
            if self.items.is_empty() {
                let mut bytes = Vec::with_capacity(4096);
                let n = self.stream.read_buf(&mut bytes).await.unwrap_or(0);
                if n == 0 || self.decoder.ended {
                    return Item::End;
                }
                self.text.extend(self.decoder.decode(&bytes));
                if self.decoder.ended && self.text.is_empty() {
                    return Item::End;
                }
            }
        }
    }

    fn read_block(&mut self, block: &str) {
        let (mut name, mut id, mut data) = (String::new(), None, Vec::new());
        for line in block.lines().filter(|line| !line.is_empty()) {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
            match field {
                "" => self.items.push_back(Item::Comment(value)),
                "event" => name = value,
                "id" => id = Some(value),
                "data" => data.push(value),
                "retry" => self.items.push_back(Item::Retry(value.parse().unwrap())),
                _ => panic!("an SSE field that nobody knows: {line:?}"),
            }
        }
        if id.is_some() {
            self.last_id.clone_from(&id);
        }
        if !data.is_empty() {
            self.items.push_back(Item::Event { name, id, data: data.join("\n") });
        }
    }
}
