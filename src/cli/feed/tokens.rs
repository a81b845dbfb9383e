//! `tickbridge feed --tokens`: writes answers into streams, word by word.
//!
//! Not here: the words (`stream::demo`), how an entry is added (`upstream::streams`).

use crate::cli::Failure;
use crate::cli::redis::{RedisArgs, Servers};
use crate::stream::StreamId;
use crate::stream::demo::{self, INTERVAL, WORDS};
use crate::upstream::streams::RedisStreams;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

/// Connections per node, so that several hundred streams keep their pace.
const POOL: usize = 16;

/// What is written.
#[derive(clap::Args, Debug)]
pub struct TokenArgs {
    /// Write answers into streams instead of quotes: words at a steady pace, then an end.
    ///
    /// The id of each stream is printed when it is complete.
    #[arg(long, conflicts_with_all = ["replay", "synthetic", "instruments", "seed", "rate", "duration", "channel", "partitions", "per_instrument", "keys_only"])]
    pub tokens: bool,
    /// Words of an answer.
    #[arg(long, value_name = "N", default_value_t = NonZeroUsize::new(WORDS).expect("not zero"), requires = "tokens")]
    words: NonZeroUsize,
    /// Time between two words.
    #[arg(long, value_name = "D", value_parser = humantime::parse_duration, requires = "tokens")]
    interval: Option<Duration>,
    /// Streams that are written at the same time.
    #[arg(long, value_name = "N", default_value = "1", requires = "tokens")]
    streams: NonZeroUsize,
    /// Id of the stream; with several, -1 and so on are added [default: one by chance].
    #[arg(long, value_name = "ID", requires = "tokens")]
    stream_id: Option<String>,
}

impl TokenArgs {
    fn ids(&self) -> Result<Vec<StreamId>, Failure> {
        let base = self.stream_id.clone().unwrap_or_else(|| format!("feed-{:08x}", rand::random::<u32>()));
        let n = self.streams.get();
        let names = (1..=n).map(|i| if n == 1 { base.clone() } else { format!("{base}-{i}") });
        let ids: Option<Vec<_>> = names.map(|name| StreamId::parse(&name)).collect();
        ids.ok_or_else(|| {
            Failure::Misused("--stream-id must be letters, digits and . _ ~ : -, at most 128".into())
        })
    }
}

/// Writes until all are complete.
///
/// # Errors
/// The arguments make no sense, the servers can't be reached, or an entry could not be added.
pub async fn run(args: &TokenArgs, redis: &RedisArgs) -> Result<(), Failure> {
    let ids = args.ids()?;
    let streams = redis.streams()?;
    let mut servers = redis.config()?;
    servers.pool_size = servers.pool_size.max(POOL);
    let servers = Servers::find(&servers).await?;
    let writer = RedisStreams::new(Arc::clone(&servers.commands), streams);
    let (n_words, pace) = (args.words.get(), args.interval.unwrap_or(INTERVAL));
    let writer = &writer;
    let write = |id| async move { (id, demo::write(writer, id, n_words, pace).await.len()) };
    let mut writing: FuturesUnordered<_> = ids.iter().map(write).collect();
    let mut n_broken = 0;
    while let Some((id, n_stored)) = writing.next().await {
        if n_stored == n_words + 1 {
            crate::cli::print(&format!("{id}\n"))?;
        } else {
            n_broken += 1;
        }
    }
    match n_broken {
        0 => Ok(()),
        n => Err(Failure::Failed(format!("{n} streams could not be completed; check the servers"))),
    }
}
