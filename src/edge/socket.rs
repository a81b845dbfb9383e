//! Options of sockets, set once here so that every accepted connection has the same ones.

use crate::config::Session;
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};

/// Connections that the kernel completes before they are accepted. Two seconds of the default accept rate;
/// the system's `somaxconn` may lower it.
const BACKLOG: u32 = 4096;

/// An idle connection is probed after this. Heartbeats find dead sessions earlier; the probes are for
/// connections that have no heartbeat.
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);

/// Time between two probes of a silent peer.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// A peer that doesn't read or acknowledge an HTTP answer for this long is cut off by the kernel, so that
/// it can't hold a place among the connections that aren't sessions.
const HTTP_USER_TIMEOUT: Duration = Duration::from_secs(15);

/// Opens a listener; port 0 lets the system choose.
///
/// # Errors
/// Those of the system, as when the address is in use.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted gateway must get its port back while old connections are in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// What accepted sockets are set to.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    send_buffer: usize,
    /// A session's own rules (slow consumer, missed pongs) must come first; the kernel's limit is for what
    /// they can't see.
    session_user_timeout: Duration,
}

impl Options {
    /// The options that `session` asks for.
    pub fn new(session: &Session) -> Self {
        let silence = session.heartbeat_interval + session.pong_timeout * (session.max_missed_pongs + 1);
        Self {
            send_buffer: session.send_buffer_bytes,
            session_user_timeout: silence.max(session.slow_consumer_grace * 2),
        }
    }

    /// Sets a fresh connection up for the HTTP stage.
    ///
    /// # Errors
    /// Those of the system; the peer may be gone already.
    pub fn apply(&self, socket: &impl AsFd) -> io::Result<()> {
        let socket = SockRef::from(socket);
        // Small frames must not wait for acknowledgements.
        socket.set_tcp_nodelay(true)?;
        // Surplus waits in the outbox, where newer quotes replace it, and not in the kernel.
        socket.set_send_buffer_size(self.send_buffer)?;
        socket.set_tcp_notsent_lowat(u32::try_from(self.send_buffer).unwrap_or(u32::MAX))?;
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL);
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(HTTP_USER_TIMEOUT))
    }

    /// Changes what is different for a session.
    ///
    /// # Errors
    /// Those of the system.
    pub fn apply_session(&self, socket: &impl AsFd) -> io::Result<()> {
        SockRef::from(socket).set_tcp_user_timeout(Some(self.session_user_timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn accepted_sockets_carry_the_options() {
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let _peer = tokio::net::TcpStream::connect(address).await.expect("connects");
        let (stream, _) = listener.accept().await.expect("accepts");
        let options = Options::new(&Session::default());
        options.apply(&stream).expect("options");
        let socket = SockRef::from(&stream);
        assert!(socket.tcp_nodelay().expect("readable"));
        assert!(socket.keepalive().expect("readable"));
        assert_eq!(socket.tcp_notsent_lowat().expect("readable"), 16 * 1024);
        // Linux doubles what is asked for, to make room for its own records.
        assert_eq!(socket.send_buffer_size().expect("readable"), 32 * 1024);
        options.apply_session(&stream).expect("options");
        assert_eq!(socket.tcp_user_timeout().expect("readable"), Some(Duration::from_secs(20 + 5 * 45)));
    }
}
