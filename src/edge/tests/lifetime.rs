//! How the edge ends.

use super::stand::{HANDSHAKE, PATIENCE, Stand, config, write};
use crate::clock::Now;
use crate::session::Principal;
use crate::session::permission::Permissions;
use crate::session::tickets::{Answer, Tickets, fresh};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

#[tokio::test]
async fn a_drain_closes_the_door_and_leaves_sessions_and_operators_alone() {
    let mut stand = Stand::start(&config());
    let mut client = stand.connect().await;
    client.send(&format!("{HANDSHAKE}\r\n")).await;
    let admission = stand.admitted().await;
    let mut idle = stand.connect().await;
    stand.wait_for("it is being spoken with", |s| s.metric("t_connections_unadmitted") == 1).await;

    stand.shutdown.draining.cancel();
    assert_eq!(idle.read_to_end().await, "");
    assert!(TcpStream::connect(stand.addresses.public).await.is_err());
    assert!(stand.ask_admin("/livez").await.starts_with("HTTP/1.1 200 "));

    let (stream, admission) = write(admission, b"still here").await;
    drop((stream, admission));
    assert!(client.read_to_end().await.ends_with("still here"));
    assert!(!stand.served.is_finished());
    stand.shutdown.stopped.cancel();
    stand.served.await.expect("no panic").expect("a clean end");
    assert!(TcpStream::connect(stand.addresses.admin).await.is_err());
}

#[tokio::test]
async fn stopping_at_once_waits_for_nobody() {
    let stand = Stand::start(&config());
    let mut idle = stand.connect().await;
    stand.wait_for("it is being spoken with", |s| s.metric("t_connections_unadmitted") == 1).await;
    stand.shutdown.draining.cancel();
    stand.shutdown.stopped.cancel();
    stand.served.await.expect("no panic").expect("a clean end");
    assert_eq!(idle.read_to_end().await, "");
}

/// A store that knows every ticket, once the test lets it speak.
struct Held {
    asked: Semaphore,
    answers: Semaphore,
}

impl Tickets for Held {
    fn put(&self, _: String, _: Principal, _: Now) -> Answer<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn take(&self, _: String, _: Now) -> Answer<'_, Option<Principal>> {
        Box::pin(async {
            self.asked.add_permits(1);
            self.answers.acquire().await.expect("never closed").forget();
            Ok(Some(Principal {
                user_id: "42".into(),
                expires_at: None,
                permissions: Permissions::default(),
            }))
        })
    }
}

#[tokio::test]
async fn a_request_under_way_is_answered_in_a_drain_but_gets_no_session() {
    let tickets = Arc::new(Held { asked: Semaphore::new(0), answers: Semaphore::new(0) });
    let mut stand = Stand::with(&config(), 1, Arc::clone(&tickets) as Arc<dyn Tickets>);
    let mut client = stand.connect().await;
    client.send(&format!("{}\r\n", HANDSHAKE.replace("/ws", &format!("/ws?ticket={}", fresh())))).await;
    let asked = timeout(PATIENCE, tickets.asked.acquire()).await.expect("in time");
    asked.expect("never closed").forget();
    stand.shutdown.draining.cancel();
    tickets.answers.add_permits(1);
    let answer = client.read_to_end().await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("\r\nconnection: close"), "{answer}");
    assert!(stand.nobody_is_admitted());
}
