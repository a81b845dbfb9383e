//! Many event streams on one HTTP/2 connection, with windows that a test chooses.

use std::net::SocketAddr;
use std::path::Path;

use h2::RecvStream;
use h2::client::SendRequest;
use tokio_tungstenite::tungstenite::http::Request;

use super::tls;
use crate::support::wait::in_time;

const DUE: std::time::Duration = std::time::Duration::from_secs(10);

/// What a server may send on one stream before it is read; the smallest that the protocol starts with.
pub const STREAM_WINDOW: u32 = 65_535;

/// The same for all streams together. Browsers, too, leave more to the connection than to a stream.
const CONNECTION_WINDOW: u32 = 1 << 24;

/// A connection.
pub struct Connection {
    send: SendRequest<bytes::Bytes>,
    authority: String,
}

impl Connection {
    /// Connects to `to`, whose certificate comes from the CA in `root`.
    pub async fn open(to: SocketAddr, root: &Path) -> Self {
        let stream = tls::open(to, &tls::connector(root, &[b"h2"])).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]), "HTTP/2 is agreed upon");
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
        let (send, connection) = builder.handshake(stream).await.unwrap();
        tokio::spawn(connection);
        Self { send, authority: format!("localhost:{}", to.port()) }
    }

    /// Opens an event stream.
    pub async fn sse(&self, path: &str, token: &str) -> Stream {
        let request = Request::get(format!("https://{}{path}", self.authority));
        let request = request.header("authorization", format!("Bearer {token}")).body(()).unwrap();
        let mut send = in_time("room for a stream", DUE, self.send.clone().ready()).await.unwrap();
        let (answer, _) = send.send_request(request, true).unwrap();
        let answer = in_time("an answer", DUE, answer).await.unwrap();
        assert_eq!(answer.status(), 200);
        Stream { body: answer.into_body(), text: String::new() }
    }
}

/// A stream on the connection.
pub struct Stream {
    body: RecvStream,
    text: String,
}

impl Stream {
    /// Reads until `needle` has come; what came before is forgotten.
    ///
    /// # Panics
    /// The stream ended.
    pub async fn until(&mut self, needle: &str) {
        loop {
            if let Some(at) = self.text.find(needle) {
                self.text.drain(..at + needle.len());
                return;
            }
            let data = self.body.data().await.expect("the stream goes on").unwrap();
            self.body.flow_control().release_capacity(data.len()).unwrap();
            self.text += std::str::from_utf8(&data).unwrap();
        }
    }
}
