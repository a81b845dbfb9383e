//! Out of descriptors, in a process of its own, since the limit is the whole process's.

use super::stand::{HANDSHAKE, Stand, config};
use crate::edge::Edge;
use crate::session::tickets::MemoryTickets;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

#[test]
fn without_descriptors_the_surplus_is_shed_and_the_rest_goes_on() {
    let child = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "edge::tests::descriptors::shed", "--ignored", "--nocapture"])
        .output()
        .expect("runs");
    let (text, errors) = (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success() && text.contains("1 passed"), "{text}{errors}");
}

/// A quarter of 120 descriptors is kept back.
#[tokio::test]
async fn descriptors_are_kept_back_for_the_rest_of_the_process() {
    let config = config();
    let mut edge = Edge::bind(&config).expect("free ports");
    edge.n_descriptors = 120;
    let stand = Stand::of(&config, edge, 1, Arc::new(MemoryTickets::default()));
    let mut clients = Vec::new();
    for _ in 0..100 {
        clients.push(stand.connect().await);
    }
    let refused = |s: &Stand| s.metric("t_refusals_total{reason=\"descriptors\"}");
    stand.wait_for("the surplus is refused", |s| refused(s) == 10).await;
    assert_eq!(stand.metric("t_accept_errors_total{reason=\"descriptors\"}"), 0);
}

/// A connecting socket takes a descriptor of the same process. So the clients come first, and the limit is then
/// set so low that the listener can accept only some of them.
#[tokio::test]
#[ignore = "run in a process of its own by the test above"]
async fn shed() {
    let mut stand = Stand::start(&config());
    let mut held = stand.connect().await;
    held.send(&format!("{HANDSHAKE}\r\n")).await;
    let _session = stand.admitted().await;

    let n_open = std::fs::read_dir("/proc/self/fd").expect("readable").count() as u64;
    let n_clients = 50;
    let sockets: Vec<_> =
        (0..n_clients).map(|_| tokio::net::TcpSocket::new_v4().expect("a socket")).collect();
    let maximum = getrlimit(Resource::Nofile).maximum;
    let lowered = Rlimit { current: Some(n_open + n_clients + 10), maximum };
    setrlimit(Resource::Nofile, lowered).expect("lowers the limit");
    let cpu_before = cpu_time();
    let begun = Instant::now();
    let mut clients = Vec::new();
    for socket in sockets {
        clients.push(socket.connect(stand.addresses.public).await.expect("connects"));
    }
    stand.wait_for("some are shed", |s| s.metric("t_refusals_total{reason=\"descriptors\"}") >= 30).await;
    assert!(stand.metric("t_accept_errors_total{reason=\"descriptors\"}") >= 30);

    // A connection waits in the backlog of a listener that can't accept it; shedding answers it instead.
    let mut last = clients.pop().expect("fifty of them");
    let mut answer = String::new();
    let read = tokio::io::AsyncReadExt::read_to_string(&mut last, &mut answer);
    timeout(Duration::from_secs(5), read).await.expect("in time").expect("reads");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    // Long enough to tell a loop that waits from one that spins.
    tokio::time::sleep_until(begun + Duration::from_secs(1)).await;
    drop((clients, last));
    let share = (cpu_time() - cpu_before).as_secs_f64() / begun.elapsed().as_secs_f64();
    assert!(share < 0.5, "used {share} of a core");
    let again = timeout(Duration::from_secs(2), async {
        let mut client = TcpStream::connect(stand.addresses.public).await.expect("connects");
        tokio::io::AsyncWriteExt::write_all(&mut client, format!("{HANDSHAKE}\r\n").as_bytes())
            .await
            .expect("writes");
        (stand.admitted().await, client)
    });
    again.await.expect("a new session within two seconds");
}

fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("readable");
    let (_, fields) = stat.rsplit_once(") ").expect("a name in brackets");
    let ticks: u64 = fields.split(' ').skip(11).take(2).map(|n| n.parse::<u64>().expect("ticks")).sum();
    // Linux counts in hundredths of a second towards user space.
    Duration::from_millis(ticks * 10)
}
