//! A small HTTP/1.1 client that shows exactly what the server sent.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// No answer of a healthy server takes longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The head of an answer.
#[derive(Debug, Clone, Default)]
pub struct Head {
    /// Status code.
    pub status: u16,
    /// Names in lower case, in the order sent.
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// The value of a header, or `""`.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(n, _)| n == name).map_or("", |(_, value)| value)
    }

    /// Reads a head if `bytes` holds a complete one, and says where the body starts.
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let text = std::str::from_utf8(&bytes[..end]).expect("a head is ASCII");
        let mut lines = text.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let header = |line: &str| {
            let (name, value) = line.split_once(':').expect("a header has a colon");
            (name.to_ascii_lowercase(), value.trim().to_owned())
        };
        Some((Self { status, headers: lines.map(header).collect() }, end + 4))
    }
}

/// A complete answer.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// Status and headers.
    pub head: Head,
    /// The body, chunks joined.
    pub body: String,
}

impl Answer {
    /// The body as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e} in {:?}", self.body))
    }
}

/// Asks for `path`.
pub async fn get(to: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Answer {
    request(to, "GET", path, headers, "").await
}

/// Sends one request on a connection of its own and reads to the end.
pub async fn request(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    try_request(to, method, path, headers, body).await.unwrap_or_else(|e| panic!("{method} {path}: {e}"))
}

/// [`request`] where the server may be gone.
///
/// # Errors
/// Why there is no answer.
pub async fn try_request(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> std::io::Result<Answer> {
    let asked = async {
        let mut stream = TcpStream::connect(to).await?;
        let mut headers = headers.to_vec();
        let length = body.len().to_string();
        headers.extend([("Connection", "close"), ("Content-Length", &length)]);
        stream.write_all(&head_of_request(to, method, path, &headers)).await?;
        stream.write_all(body.as_bytes()).await?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await?;
        let (head, start) = Head::parse(&bytes).ok_or(std::io::ErrorKind::UnexpectedEof)?;
        let mut decoder = BodyDecoder::new(&head);
        let body = decoder.decode(&bytes[start..]);
        Ok(Answer { head, body: String::from_utf8(body).expect("bodies are UTF-8") })
    };
    tokio::time::timeout(ANSWER_TIMEOUT, asked).await.unwrap_or(Err(std::io::ErrorKind::TimedOut.into()))
}

/// The bytes of a request's head.
pub fn head_of_request(to: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {to}\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    (text + "\r\n").into_bytes()
}

/// Takes chunks off a body that comes piece by piece.
pub struct BodyDecoder {
    chunked: bool,
    pending: Vec<u8>,
    /// Whether the chunk that ends the body has come.
    pub ended: bool,
}

impl BodyDecoder {
    /// For the body that follows `head`.
    pub fn new(head: &Head) -> Self {
        let chunked = head.header("transfer-encoding").eq_ignore_ascii_case("chunked");
        Self { chunked, pending: Vec::new(), ended: false }
    }

    /// The part of the body that is complete with `bytes`.
    pub fn decode(&mut self, bytes: &[u8]) -> Vec<u8> {
        if !self.chunked {
            return bytes.to_vec();
        }
        self.pending.extend_from_slice(bytes);
        let mut body = Vec::new();
        while let Some(line) = self.pending.windows(2).position(|window| window == b"\r\n") {
            let digits = std::str::from_utf8(&self.pending[..line]).expect("a chunk size is ASCII");
            let size = usize::from_str_radix(digits, 16).expect("a chunk size is hexadecimal");
            let end = line + 2 + size + 2;
            if self.pending.len() < end {
                break;
            }
            assert_eq!(&self.pending[end - 2..end], b"\r\n", "a chunk ends with a line break");
            body.extend_from_slice(&self.pending[line + 2..end - 2]);
            self.pending.drain(..end);
            self.ended |= size == 0;
        }
        body
    }
}
