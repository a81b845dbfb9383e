//! `tickbridge health`: asks a running gateway whether it is ready. For a container's `HEALTHCHECK`.
//!
//! Speaks just enough HTTP/1.1 for one GET: the image then needs neither a shell nor curl.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use url::Url;

use super::{ConfigArgs, Failure};
use crate::config::load::Purpose;

/// Ask a running gateway whether it is ready: exit code 0 if it is, 1 if not.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to ask [default: /readyz of the configured admin listener, on this machine].
    #[arg(long)]
    url: Option<Url>,
    /// How long to wait for the whole answer.
    #[arg(long, default_value = "2s", value_parser = humantime::parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Longest answer that is read; the status line and a reason fit in many times over.
const MAX_ANSWER: u64 = 16 * 1024;
/// Longest reason that is repeated, in characters.
const MAX_REASON: usize = 200;

/// Runs the command.
///
/// # Errors
/// The gateway is not ready, or does not answer.
pub async fn run(args: Args) -> Result<(), Failure> {
    let url = match args.url {
        Some(url) => url,
        None => readiness_of(args.config.load(Purpose::Look)?.config.listen.admin),
    };
    if url.scheme() != "http" || !url.has_host() {
        return Err(Failure::Misused(format!(
            "{url} is not asked over http; give a URL such as http://host:8081/readyz"
        )));
    }
    let answer = match timeout(args.timeout, get(&url)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            return Err(Failure::Failed(format!(
                "{url} does not answer ({error}); check that the gateway runs there"
            )));
        }
        Err(_) => {
            let waited = humantime::format_duration(args.timeout);
            return Err(Failure::Failed(format!(
                "{url} does not answer within {waited}; see the gateway's log"
            )));
        }
    };
    judge(&url, &answer)
}

/// The readiness of a gateway with this admin listener. One that listens everywhere is asked on the
/// loopback interface.
fn readiness_of(admin: SocketAddr) -> Url {
    let ip = match admin.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let address = SocketAddr::new(ip, admin.port());
    Url::parse(&format!("http://{address}/readyz")).expect("a socket address makes a valid URL")
}

async fn get(url: &Url) -> std::io::Result<String> {
    let host = url.host_str().unwrap_or_default();
    let port = url.port_or_known_default().unwrap_or(80);
    let mut stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await?;
    let path = &url[url::Position::BeforePath..url::Position::AfterQuery];
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn judge(url: &Url, answer: &str) -> Result<(), Failure> {
    let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
    match status {
        Some("200") => Ok(()),
        Some(status) => {
            let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            let reason: String = body.split_whitespace().collect::<Vec<_>>().join(" ");
            let reason: String = reason.chars().filter(|c| !c.is_control()).take(MAX_REASON).collect();
            Err(Failure::Failed(format!(
                "{url} answers {status}: not ready; see the gateway's log: {reason}"
            )))
        }
        None => {
            Err(Failure::Failed(format!("{url} does not speak HTTP; give the address of the admin listener")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::readiness_of;

    #[test]
    fn a_gateway_that_listens_everywhere_is_asked_on_the_loopback_interface() {
        for (admin, expected) in [
            ("0.0.0.0:8081", "http://127.0.0.1:8081/readyz"),
            ("[::]:1", "http://[::1]:1/readyz"),
            ("10.1.2.3:80", "http://10.1.2.3/readyz"),
        ] {
            let admin = admin.parse().expect("a valid address");
            assert_eq!(readiness_of(admin).as_str(), expected);
        }
    }
}
