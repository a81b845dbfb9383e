//! Refuses a connection without HTTP machinery: writes the answer, then waits a little for the peer to read it.
//!
//! Closing at once, with the request unread, would make the kernel send a reset, which can overtake the
//! answer; a proxy would report a broken server instead of a busy one.

use crate::metrics::edge::Refusal;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A peer that has its answer closes within a round trip.
const LINGER: Duration = Duration::from_secs(1);

/// Reads at most so many times 1 KiB of what the peer still sends; a request is smaller.
const MAX_READS: usize = 32;

/// Writes the answer and closes, within [`LINGER`].
pub async fn politely(mut stream: TcpStream, refusal: Refusal) {
    let conversation = async {
        stream.write_all(&refusal.to_bytes()).await?;
        stream.shutdown().await?;
        let mut ignored = [0; 1024];
        for _ in 0..MAX_READS {
            if stream.read(&mut ignored).await? == 0 {
                break;
            }
        }
        std::io::Result::Ok(())
    };
    // The peer may be gone or asleep; nothing is left to do for it either way.
    let _ = timeout(LINGER, conversation).await;
}

/// Writes what fits into the kernel's buffer and closes.
pub fn curtly(stream: &TcpStream, refusal: Refusal) {
    let _ = stream.try_write(&refusal.to_bytes());
}
