//! The servers that a command talks to: given by URL, or as configured.
//!
//! Not here: the gateway's own servers (`app`).

use super::{ConfigArgs, Failure};
use crate::config::load::Purpose;
use crate::config::{self, RedisMode, Secret};
use crate::metrics::Metrics;
use crate::upstream::commands::Commands;
use crate::upstream::connection::Connector;
use crate::upstream::readiness::Readiness;
use crate::upstream::topology::Topology;
use crate::upstream::topology::poll::Poller;
use percent_encoding::percent_decode_str;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use url::Url;

/// How long a command looks for the primaries. An election takes a few seconds.
const LOOK: Duration = Duration::from_secs(10);

/// The way to the servers, for as long as it is kept.
pub struct Servers {
    /// Connections.
    pub connector: Arc<Connector>,
    /// Commands.
    pub commands: Arc<Commands>,
    _polling: DropGuard,
}

impl Servers {
    /// Finds out who the primaries are.
    ///
    /// # Errors
    /// Nobody says so.
    pub async fn find(redis: &config::Redis) -> Result<Self, Failure> {
        let metrics = Arc::new(Metrics::new("tickbridge"));
        let readiness = Arc::new(Readiness::new(metrics.upstream.not_ready()));
        let connector = Arc::new(Connector::new(redis));
        let topology = Arc::new(Topology::of_config(redis));
        let mut table = topology.changes();
        let poller = Poller {
            topology: Arc::clone(&topology),
            connector: Arc::clone(&connector),
            readiness: Arc::clone(&readiness),
            metrics: Arc::clone(&metrics),
        };
        let stop = CancellationToken::new();
        TaskTracker::new().spawn(poller.run(stop.clone()));
        if timeout(LOOK, table.wait_for(|table| table.n_unowned() == 0)).await.is_err() {
            let why: Vec<_> = readiness.reasons().into_iter().map(|(_, why)| why).collect();
            let nodes = redis.nodes.join(", ");
            let why = if why.is_empty() { "slots have no owner".to_owned() } else { why.join("; ") };
            return Err(Failure::Failed(format!(
                "no primaries can be found by {nodes} ({why}); check --redis"
            )));
        }
        let commands = Arc::new(Commands::new(Arc::clone(&connector), topology, redis, metrics));
        Ok(Self { connector, commands, _polling: stop.drop_guard() })
    }
}

/// Where Redis is.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct RedisArgs {
    /// A server as redis://[user:password@]host[:port][/db], rediss:// for TLS; several for a cluster.
    ///
    /// Without it the servers are those of the configuration. A password is better given by
    /// --password-file, since others on the machine can see a command line.
    #[arg(long = "redis", value_name = "URL", num_args = 1..)]
    urls: Vec<String>,
    /// The servers form a Redis Cluster.
    #[arg(long)]
    cluster: bool,
    /// File with the password.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// PEM file with the CA to trust instead of the system's.
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
}

impl RedisArgs {
    /// What is configured about streams.
    ///
    /// # Errors
    /// The configuration has problems.
    pub fn streams(&self) -> Result<config::streams::Streams, Failure> {
        Ok(self.config.load(Purpose::Look)?.config.streams)
    }

    /// The servers, and everything else about Redis as configured.
    ///
    /// # Errors
    /// A URL is no server's, the URLs contradict each other, or the configuration has problems.
    pub fn config(&self) -> Result<config::Redis, Failure> {
        let mut redis = self.config.load(Purpose::Look)?.config.redis;
        let urls = self.urls.iter().map(|url| read(url)).collect::<Result<Vec<_>, _>>()?;
        if let [first, others @ ..] = &urls[..] {
            apply(first, &mut redis)?;
            redis.nodes = urls.iter().map(node).collect();
            redis.mode = if self.cluster { RedisMode::Cluster } else { RedisMode::Standalone };
            let alike = |url: &Url| {
                let parts =
                    |url: &Url| (url.scheme().to_owned(), url.username().to_owned(), url.path().to_owned());
                parts(url) == parts(first) && url.password() == first.password()
            };
            if !others.iter().all(alike) {
                return Err(Failure::Misused("the URLs of --redis may differ in host and port only".into()));
            }
            if !others.is_empty() && !self.cluster {
                return Err(Failure::Misused("several URLs need --cluster".into()));
            }
        } else if self.cluster {
            redis.mode = RedisMode::Cluster;
        }
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        if let Some(path) = &self.password_file {
            redis.password_file = Some(text(path));
        }
        if let Some(path) = &self.tls_ca {
            redis.tls_ca = Some(text(path));
        }
        match redis.mode {
            RedisMode::Embedded => {
                Err(Failure::Misused("there is no Redis in embedded mode; give --redis URL".into()))
            }
            RedisMode::Cluster if redis.database != 0 => {
                Err(Failure::Misused("a cluster has no database but 0; leave it out of the URL".into()))
            }
            _ => Ok(redis),
        }
    }
}

/// Reads a URL. What is wrong with it is not shown: it may hold a password.
fn read(text: &str) -> Result<Url, Failure> {
    let url = Url::parse(text).ok().filter(|url| {
        let database = url.path().trim_start_matches('/');
        matches!(url.scheme(), "redis" | "rediss")
            && url.host_str().is_some_and(|host| !host.is_empty())
            && (database.is_empty() || database.parse::<u32>().is_ok())
    });
    const RULE: &str = "each URL of --redis must look like redis://[user:password@]host[:port][/db], \
                        or rediss:// for TLS";
    url.ok_or_else(|| Failure::Misused(RULE.into()))
}

/// Takes over what a URL says beyond its node.
fn apply(url: &Url, redis: &mut config::Redis) -> Result<(), Failure> {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8().map(|text| text.into_owned());
    let undecodable = |_| Failure::Misused("user and password in the URL of --redis must be UTF-8".into());
    redis.tls = url.scheme() == "rediss";
    redis.username = match url.username() {
        "" => None,
        user => Some(decoded(user).map_err(undecodable)?),
    };
    redis.password = url.password().map(decoded).transpose().map_err(undecodable)?.map(Secret::new);
    redis.password_file = None;
    redis.database = url.path().trim_start_matches('/').parse().unwrap_or(0);
    Ok(())
}

fn node(url: &Url) -> String {
    format!("{}:{}", url.host_str().unwrap_or_default(), url.port().unwrap_or(6379))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, FromArgMatches};

    fn config(args: &[&str]) -> Result<config::Redis, String> {
        let command = RedisArgs::augment_args(clap::Command::new("x"));
        let matches = command.try_get_matches_from([&["x"], args].concat()).map_err(|e| e.to_string())?;
        RedisArgs::from_arg_matches(&matches).expect("parsed").config().map_err(|e| e.to_string())
    }

    #[test]
    fn a_url_says_where_and_as_whom() {
        let redis = config(&["--redis", "rediss://svc:p%40ss+word@r1:7000/3"]).expect("good");
        assert_eq!(
            (redis.nodes.as_slice(), redis.tls, redis.database),
            (&["r1:7000".to_owned()][..], true, 3)
        );
        assert_eq!(redis.username.as_deref(), Some("svc"));
        assert_eq!(redis.password.expect("one").expose(), "p@ss+word");
        assert_eq!(config(&["--redis", "redis://[::1]"]).expect("good").nodes, ["[::1]:6379"]);
    }

    #[test]
    fn several_urls_are_the_nodes_of_a_cluster() {
        let redis = config(&["--cluster", "--redis", "redis://a:1", "redis://b:2"]).expect("good");
        assert_eq!((redis.mode, redis.nodes), (RedisMode::Cluster, vec!["a:1".to_owned(), "b:2".to_owned()]));
    }

    #[test]
    fn what_makes_no_sense_is_refused_without_showing_passwords() {
        for args in [
            &["--redis", "http://h"][..],
            &["--redis", "redis://u:secret@h/x"],
            &["--redis", "redis://a", "redis://b"],
            &["--cluster", "--redis", "redis://a", "redis://u:secret@b"],
            &["--cluster", "--redis", "redis://u:secret@a/1"],
            &["--redis", "nonsense"],
        ] {
            let refused = config(args).expect_err("refused");
            assert!(!refused.contains("secret"), "{refused}");
        }
    }
}
