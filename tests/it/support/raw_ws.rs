//! A WebSocket client that sends any frame, right or wrong, and costs little enough for thousands.

use super::http::{Head, head_of_request};
use super::wait::in_time;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Longest wait for anything that is due.
const DUE: Duration = Duration::from_secs(10);

/// Masking is a duty of clients; the key may be any.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// `opcode` of a text frame, the final fragment.
pub const TEXT: u8 = 0x81;
/// `opcode` of a close frame.
pub const CLOSE: u8 = 0x88;
/// `opcode` of a ping frame.
pub const PING: u8 = 0x89;
/// `opcode` of a pong frame.
pub const PONG: u8 = 0x8a;

/// A frame from the server.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// The first byte: FIN, reserved bits and opcode.
    pub first: u8,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Frame {
    /// The payload as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.payload).expect("the server sends UTF-8")
    }

    /// Code and reason of a close frame.
    pub fn close(&self) -> (u16, &str) {
        assert_eq!(self.first, CLOSE, "not a close frame: {self:?}");
        (
            u16::from_be_bytes([self.payload[0], self.payload[1]]),
            std::str::from_utf8(&self.payload[2..]).unwrap(),
        )
    }
}

/// A connection after the upgrade.
pub struct RawWs {
    /// The connection.
    pub stream: TcpStream,
    /// The answer to the upgrade.
    pub head: Head,
    buffer: Vec<u8>,
}

impl RawWs {
    /// Connects and upgrades.
    pub async fn connect(to: SocketAddr) -> Self {
        Self::connect_with(to, None, &[]).await
    }

    /// Connects with a small receive buffer, for readers that are to be slow, and further headers.
    pub async fn connect_with(to: SocketAddr, receive_buffer: Option<u32>, more: &[(&str, &str)]) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        if let Some(size) = receive_buffer {
            socket.set_recv_buffer_size(size).unwrap();
        }
        let mut stream = in_time("a connection", DUE, socket.connect(to)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut headers = vec![("Connection", "Upgrade"), ("Upgrade", "websocket")];
        headers.extend([("Sec-WebSocket-Version", "13"), ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")]);
        headers.extend(more);
        stream.write_all(&head_of_request(to, "GET", "/market/ws", &headers)).await.unwrap();
        let mut buffer = Vec::new();
        let (head, start) = in_time("the answer to an upgrade", DUE, async {
            loop {
                if let Some(parsed) = Head::parse(&buffer) {
                    return parsed;
                }
                assert_ne!(stream.read_buf(&mut buffer).await.unwrap(), 0, "the connection ended");
            }
        })
        .await;
        assert_eq!(head.status, 101, "{head:?}");
        assert_eq!(head.header("sec-websocket-accept"), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        buffer.drain(..start);
        Self { stream, head, buffer }
    }

    /// Sends one masked frame with any first byte.
    pub async fn send_frame(&mut self, first: u8, payload: &[u8]) -> std::io::Result<()> {
        let mut bytes = vec![first];
        match payload.len() {
            n @ 0..=125 => bytes.push(0x80 | n as u8),
            n @ 126..=0xffff => {
                bytes.push(0x80 | 126);
                bytes.extend((n as u16).to_be_bytes());
            }
            n => {
                bytes.push(0x80 | 127);
                bytes.extend((n as u64).to_be_bytes());
            }
        }
        bytes.extend(MASK);
        bytes.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        self.stream.write_all(&bytes).await
    }

    /// Sends a text message.
    pub async fn send(&mut self, text: &str) {
        self.send_frame(TEXT, text.as_bytes()).await.unwrap();
    }

    /// The next frame, or `None` when the connection has ended.
    ///
    /// # Cancel safety
    /// What was read stays for the next call.
    pub async fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.buffered_frame() {
                return Some(frame);
            }
            self.buffer.reserve(2048);
            if self.stream.read_buf(&mut self.buffer).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// A frame that has come already.
    pub fn buffered_frame(&mut self) -> Option<Frame> {
        let (&first, rest) = self.buffer.split_first()?;
        let (&length, rest) = rest.split_first()?;
        assert_eq!(length & 0x80, 0, "a server must not mask");
        let (length, header) = match length {
            126 => (usize::from(u16::from_be_bytes(rest.get(..2)?.try_into().unwrap())), 4),
            127 => (u64::from_be_bytes(rest.get(..8)?.try_into().unwrap()) as usize, 10),
            length => (usize::from(length), 2),
        };
        let payload = self.buffer.get(header..header + length)?.to_vec();
        self.buffer.drain(..header + length);
        Some(Frame { first, payload })
    }

    /// The next frame in time.
    pub async fn next(&mut self) -> Option<Frame> {
        in_time("a frame or the end", DUE, self.frame()).await
    }

    /// The next text message that isn't a heartbeat.
    pub async fn next_text(&mut self) -> String {
        loop {
            let frame = self.next().await.expect("the connection is open");
            assert_eq!(frame.first, TEXT, "not a text frame: {frame:?}");
            if !frame.payload.starts_with(br#"{"type":"ping""#) {
                return frame.text().to_owned();
            }
        }
    }

    /// Ends the connection with a reset.
    pub fn reset(self) {
        let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }
}
