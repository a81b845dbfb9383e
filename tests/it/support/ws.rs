//! A well-behaved WebSocket client: tungstenite judges what the server sends, heartbeats are answered
//! in the background, and every text is kept as it came.

use super::gateway::Gateway;
use super::http::{Answer, Head};
use super::token::token;
use super::wait::in_time;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{HeaderName, HeaderValue};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};

/// Longest wait for anything that is due.
const DUE: Duration = Duration::from_secs(5);

/// What the client hears.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    /// A text message.
    Text(String),
    /// The server's close frame.
    Close(u16, String),
    /// The connection's end.
    Gone,
}

/// An open session.
pub struct Ws {
    heard: mpsc::UnboundedReceiver<Heard>,
    say: mpsc::UnboundedSender<Message>,
    task: JoinHandle<()>,
    /// Heartbeats that came so far, read ones only.
    pub n_pings: usize,
}

impl Ws {
    /// Connects without authenticating.
    pub async fn open(gateway: &Gateway) -> Self {
        Self::connect(gateway.public, "/market/ws", &[]).await.expect("the upgrade is accepted")
    }

    /// Connects and authenticates as `user`.
    pub async fn open_as(gateway: &Gateway, user: &str) -> Self {
        let mut ws = Self::open(gateway).await;
        ws.auth(&token(user)).await;
        ws
    }

    /// Connects to any address and path with further headers.
    ///
    /// # Errors
    /// The answer that refuses the upgrade.
    pub async fn connect(to: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Result<Self, Answer> {
        let mut request = format!("ws://{to}{path}").into_client_request().unwrap();
        for (name, value) in headers {
            let name: HeaderName = name.parse().unwrap();
            request.headers_mut().insert(name, HeaderValue::from_str(value).unwrap());
        }
        let stream = in_time("a connection", DUE, TcpStream::connect(to)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let upgraded = tokio_tungstenite::client_async(request, stream);
        match in_time("the answer to an upgrade", DUE, upgraded).await {
            Ok((stream, _)) => {
                let (say, said) = mpsc::unbounded_channel();
                let (hear, heard) = mpsc::unbounded_channel();
                let task = tokio::spawn(converse(stream, said, hear));
                Ok(Self { heard, say, task, n_pings: 0 })
            }
            Err(Error::Http(refusal)) => {
                let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
                let headers = refusal.headers().iter().map(|(n, v)| (n.to_string(), text(v))).collect();
                let body = String::from_utf8(refusal.body().clone().unwrap_or_default()).unwrap();
                Err(Answer { head: Head { status: refusal.status().as_u16(), headers }, body })
            }
            Err(e) => panic!("the upgrade to {path} broke: {e}"),
        }
    }

    /// Sends a text.
    pub fn send(&self, text: impl Into<String>) {
        self.send_message(Message::text(text.into()));
    }

    /// Sends any message.
    pub fn send_message(&self, message: Message) {
        // Saying something to a closed session is a wish, not a fault.
        let _ = self.say.send(message);
    }

    /// What comes next, heartbeats included.
    pub async fn next(&mut self) -> Heard {
        in_time("something from the session", DUE, self.heard.recv()).await.unwrap_or(Heard::Gone)
    }

    /// The next text that isn't a heartbeat.
    pub async fn next_text(&mut self) -> String {
        match self.next_but_pings(DUE).await {
            Some(Heard::Text(text)) => text,
            other => panic!("a text is due, not {other:?}"),
        }
    }

    /// [`Ws::next_text`] as JSON.
    pub async fn next_json(&mut self) -> Value {
        let text = self.next_text().await;
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e} in {text:?}"))
    }

    /// The next text of this type; others are skipped.
    pub async fn next_of(&mut self, kind: &str) -> String {
        let start = format!(r#"{{"type":"{kind}""#);
        in_time(&format!("a message of type {kind}"), DUE, async {
            loop {
                let text = self.next_text().await;
                if text.starts_with(&start) {
                    return text;
                }
            }
        })
        .await
    }

    /// Text of the next quote event.
    pub async fn next_event(&mut self) -> String {
        self.next_of("event").await
    }

    /// Authenticates and checks the answer.
    pub async fn auth(&mut self, token: &str) {
        self.send(json!({ "type": "auth", "token": token }).to_string());
        let answer = self.next_json().await;
        assert_eq!((&answer["type"], &answer["ok"]), (&json!("auth"), &json!(true)), "{answer}");
    }

    /// Subscribes and gives the text of the acknowledgement.
    pub async fn subscribe(&mut self, topics: &[&str]) -> String {
        self.request("subscribe", topics).await
    }

    /// Unsubscribes and gives the text of the acknowledgement.
    pub async fn unsubscribe(&mut self, topics: &[&str]) -> String {
        self.request("unsubscribe", topics).await
    }

    async fn request(&mut self, kind: &str, topics: &[&str]) -> String {
        self.send(json!({ "type": kind, "request_id": "r", "topics": topics }).to_string());
        self.next_of(kind).await
    }

    /// Code and reason with which the server closes; what comes before is skipped.
    pub async fn closed(&mut self, within: Duration) -> (u16, String) {
        in_time("the server's close", within, async {
            loop {
                match self.heard.recv().await {
                    Some(Heard::Text(_)) => {}
                    Some(Heard::Close(code, reason)) => return (code, reason),
                    Some(Heard::Gone) | None => panic!("the connection ended without a close frame"),
                }
            }
        })
        .await
    }

    /// Everything but heartbeats that comes within `time`.
    pub async fn all_within(&mut self, time: Duration) -> Vec<Heard> {
        let end = tokio::time::Instant::now() + time;
        let mut all = Vec::new();
        while let Some(heard) =
            self.next_but_pings(end.saturating_duration_since(tokio::time::Instant::now())).await
        {
            let gone = heard == Heard::Gone;
            all.push(heard);
            if gone {
                break;
            }
        }
        all
    }

    async fn next_but_pings(&mut self, within: Duration) -> Option<Heard> {
        let end = tokio::time::Instant::now() + within;
        loop {
            match tokio::time::timeout_at(end, self.heard.recv()).await.ok()?.unwrap_or(Heard::Gone) {
                Heard::Text(text) if is_ping(&text) => self.n_pings += 1,
                heard => return Some(heard),
            }
        }
    }

    /// Closes as a browser does and waits for the server's part of it.
    pub async fn close(mut self) {
        self.send_message(Message::Close(Some(CloseFrame { code: 1000.into(), reason: "".into() })));
        in_time("the end of the connection", DUE, async {
            while !matches!(self.heard.recv().await, Some(Heard::Gone) | None) {}
        })
        .await;
    }
}

impl Drop for Ws {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn is_ping(text: &str) -> bool {
    text.starts_with(r#"{"type":"ping""#)
}

async fn converse(
    stream: WebSocketStream<TcpStream>,
    mut said: mpsc::UnboundedReceiver<Message>,
    hear: mpsc::UnboundedSender<Heard>,
) {
    let (mut sink, mut stream) = stream.split();
    loop {
        let heard = tokio::select! {
            message = said.recv() => match message {
                Some(message) => {
                    let _ = sink.send(message).await;
                    continue;
                }
                None => return,
            },
            message = stream.next() => match message {
                Some(Ok(Message::Text(text))) => {
                    if is_ping(&text) {
                        let _ = sink.send(Message::text(r#"{"type":"pong"}"#)).await;
                    }
                    Heard::Text(text.to_string())
                }
                Some(Ok(Message::Close(Some(frame)))) => Heard::Close(frame.code.into(), frame.reason.to_string()),
                Some(Ok(Message::Close(None))) => Heard::Close(1005, String::new()),
                Some(Ok(Message::Binary(_))) => panic!("the server sends text only"),
                Some(Ok(_)) => continue,
                Some(Err(Error::Protocol(fault))) if !is_end(&fault) => panic!("the server broke the protocol: {fault}"),
                Some(Err(_)) | None => Heard::Gone,
            },
        };
        let gone = heard == Heard::Gone;
        if hear.send(heard).is_err() || gone {
            return;
        }
    }
}

fn is_end(fault: &tokio_tungstenite::tungstenite::error::ProtocolError) -> bool {
    matches!(fault, tokio_tungstenite::tungstenite::error::ProtocolError::ResetWithoutClosingHandshake)
}
