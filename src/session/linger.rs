//! How a connection is let go that was closed by us.

use std::io;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a closed connection may take to say that it has seen the close. Closing a socket that holds unread bytes
/// resets it, and the reset would destroy the close on its way.
pub const LINGER: Duration = Duration::from_secs(2);

/// Waits until the client has seen the close, but not for long.
pub async fn linger(stream: &TcpStream) {
    let seen = async { while stream.readable().await.is_ok() && discard(stream) {} };
    let _ = timeout(LINGER, seen).await;
}

/// Reads what has come. Gives whether more may come.
fn discard(stream: &TcpStream) -> bool {
    match read_some(stream) {
        Ok(n) => n > 0,
        Err(e) => e.kind() == io::ErrorKind::WouldBlock,
    }
}

/// Reads some of what has come, to see how much that is.
///
/// # Errors
/// What the socket says; `WouldBlock` where nothing has come.
pub fn read_some(stream: &TcpStream) -> io::Result<usize> {
    // Not in an async function: a buffer there would be a part of every session's task.
    let mut buffer = [0; 512];
    stream.try_read(&mut buffer)
}
