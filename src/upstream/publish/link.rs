//! One connection that carries a publisher's commands to a node, many at once.
//!
//! Invariants:
//! - Commands go out in the order in which they were handed over, and so do their answers come back.
//! - Whoever waits for answers hears within the patience of the link: its own answers, or the end of
//!   the link. A link never comes back; the publisher opens another.
//! - What is queued and in flight is bounded.
//!
//! Not here: connecting (`dial`), what is sent (`Publisher`).

use super::resp::{self, Answer, Garbled};
use crate::upstream::commands::failure::Kind;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Jobs that wait for the socket, and jobs whose answers are awaited. Enough to keep a server busy while
/// the next are made; more would only be lost with the connection.
const MAX_JOBS: usize = 4;

/// First size of the receive buffer: the answers to several thousand commands.
const RECEIVE_BUFFER: usize = 32 * 1024;

/// Errors kept per job. A node that refuses everything says the same thing thousands of times.
const MAX_TEXT: usize = 200;

/// Stands for an answer that is no number.
pub const NO_NUMBER: i64 = i64::MIN;

/// The sending end of a link.
#[derive(Clone, Debug)]
pub struct Link {
    jobs: mpsc::Sender<Job>,
}

#[derive(Debug)]
struct Job {
    bytes: Vec<u8>,
    answers: Answers,
    n_left: u32,
    done: oneshot::Sender<Answers>,
}

/// What a job was answered.
#[derive(Default, Debug)]
pub struct Answers {
    n_seen: u32,
    /// The answers as numbers, if they were asked for; [`NO_NUMBER`] where one is none.
    pub numbers: Option<Vec<i64>>,
    /// Commands that were refused, counted from 0 within the job.
    pub errors: Vec<Refusal>,
}

/// An error answer.
#[derive(Debug)]
pub struct Refusal {
    /// Which command of the job.
    pub at: u32,
    /// Why.
    pub kind: Kind,
    /// The server's words.
    pub text: String,
}

/// Why a link ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// Answers were owed for too long.
    #[error("no answer in time")]
    Silent,
    /// The peer speaks something else, or answers what wasn't asked.
    #[error("the answers make no sense")]
    Garbled,
}

impl From<Garbled> for Ended {
    fn from(_: Garbled) -> Self {
        Self::Garbled
    }
}

impl Link {
    /// A link over `stream`, and the task that carries it. Answers that are owed may be silent for
    /// `patience`. The task ends when the last clone of the link is dropped and all is answered.
    pub fn over<S>(stream: S, patience: Duration) -> (Self, impl Future<Output = Result<(), Ended>>)
    where
        S: AsyncRead + AsyncWrite,
    {
        let (jobs, waiting) = mpsc::channel(MAX_JOBS);
        (Self { jobs }, carry(stream, waiting, patience))
    }

    /// Whether the link has ended.
    pub fn is_closed(&self) -> bool {
        self.jobs.is_closed()
    }

    /// Hands over commands that will be answered `n_answers` times; `numbers` asks for those among the
    /// answers. Waits for room. The receiver hears nothing but its end if the link ends first.
    ///
    /// # Cancel safety
    /// Nothing was handed over.
    pub async fn send(
        &self,
        bytes: Vec<u8>,
        n_answers: u32,
        numbers: bool,
    ) -> Option<oneshot::Receiver<Answers>> {
        let (done, answers) = oneshot::channel();
        let numbers = numbers.then(|| Vec::with_capacity(n_answers as usize));
        let job = Job { bytes, answers: Answers { numbers, ..Answers::default() }, n_left: n_answers, done };
        self.jobs.send(job).await.ok()?;
        Some(answers)
    }
}

async fn carry<S>(stream: S, jobs: mpsc::Receiver<Job>, patience: Duration) -> Result<(), Ended>
where
    S: AsyncRead + AsyncWrite,
{
    let (reader, writer) = tokio::io::split(stream);
    let (owed, owing) = mpsc::channel(MAX_JOBS);
    tokio::try_join!(write(writer, jobs, owed, patience), read(reader, owing, patience))?;
    Ok(())
}

async fn write<S: AsyncWrite>(
    mut writer: WriteHalf<S>,
    mut jobs: mpsc::Receiver<Job>,
    owed: mpsc::Sender<Job>,
    patience: Duration,
) -> Result<(), Ended> {
    while let Some(mut job) = jobs.recv().await {
        let bytes = std::mem::take(&mut job.bytes);
        // Owed before it is sent, so that no answer comes unexpected. The reader outlives this loop.
        if owed.send(job).await.is_err() {
            break;
        }
        let sent = async {
            writer.write_all(&bytes).await?;
            writer.flush().await
        };
        timeout(patience, sent).await.map_err(|_| Ended::Silent)??;
    }
    Ok(())
}

async fn read<S: AsyncRead>(
    mut reader: ReadHalf<S>,
    mut owing: mpsc::Receiver<Job>,
    patience: Duration,
) -> Result<(), Ended> {
    let mut buffer = Vec::with_capacity(RECEIVE_BUFFER);
    let mut current: Option<Job> = None;
    loop {
        let mut at = 0;
        while let Some((answer, len)) = resp::answer(&buffer[at..])? {
            at += len;
            let mut job = match current.take() {
                Some(job) => job,
                None => owing.try_recv().map_err(|_| Ended::Garbled)?,
            };
            job.answers.note(answer);
            job.n_left -= 1;
            if job.n_left > 0 {
                current = Some(job);
            } else {
                // Nobody may wait any more.
                let _ = job.done.send(job.answers);
            }
        }
        buffer.drain(..at);
        let n_read = match current {
            Some(_) => timeout(patience, reader.read_buf(&mut buffer)).await.map_err(|_| Ended::Silent)??,
            None => tokio::select! {
                job = owing.recv() => match job {
                    Some(job) => {
                        current = Some(job);
                        continue;
                    }
                    None => return Ok(()),
                },
                // A server that closes an idle connection is noticed before anything is sent.
                read = reader.read_buf(&mut buffer) => read?,
            },
        };
        if n_read == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
}

impl Answers {
    fn note(&mut self, answer: Answer<'_>) {
        if let Some(numbers) = &mut self.numbers {
            numbers.push(if let Answer::Number(number) = answer { number } else { NO_NUMBER });
        }
        if let Answer::Error(text) = answer {
            let kind = Kind::of_code(text.split(' ').next().unwrap_or_default());
            let text = text.chars().take(MAX_TEXT).collect();
            self.errors.push(Refusal { at: self.n_seen, kind, text });
        }
        self.n_seen += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::DuplexStream;

    const PATIENCE: Duration = Duration::from_millis(100);

    async fn received(server: &mut DuplexStream, expected: &str) {
        let mut bytes = vec![0; expected.len()];
        server.read_exact(&mut bytes).await.expect("the link sends");
        assert_eq!(String::from_utf8_lossy(&bytes), expected);
    }

    #[tokio::test]
    async fn answers_come_back_to_their_jobs_in_order() {
        let (client, mut server) = tokio::io::duplex(64);
        let (link, task) = Link::over(client, PATIENCE);
        let talk = async {
            let first = link.send(b"aa".to_vec(), 2, true).await.expect("open");
            let second = link.send(b"b".to_vec(), 2, false).await.expect("open");
            received(&mut server, "aab").await;
            server.write_all(b"-ERR x\r\n:2\r\n+OK\r\n-MOVED 7 h:1\r\n").await.expect("open");
            let first = first.await.expect("answered");
            assert_eq!((first.numbers, first.errors.len()), (Some(vec![NO_NUMBER, 2]), 1));
            let second = second.await.expect("answered");
            assert_eq!(second.numbers, None);
            assert_eq!((second.errors[0].at, second.errors[0].kind), (1, Kind::Redirected));
            drop(link);
        };
        let (ended, ()) = tokio::join!(task, talk);
        ended.expect("a link whose work is done ends well");
    }

    #[tokio::test]
    async fn a_server_that_owes_answers_and_is_silent_ends_the_link() {
        let (client, _server) = tokio::io::duplex(64);
        let (link, task) = Link::over(client, PATIENCE);
        let talk = async { link.send(b"a".to_vec(), 1, false).await.expect("open").await };
        let (ended, answer) = tokio::join!(task, talk);
        assert!(matches!(ended, Err(Ended::Silent)), "{ended:?}");
        assert!(answer.is_err());
        assert!(link.is_closed());
    }

    #[tokio::test]
    async fn an_idle_link_may_be_silent_but_notices_its_end() {
        let (client, server) = tokio::io::duplex(64);
        let (link, task) = Link::over(client, PATIENCE);
        let mut task = std::pin::pin!(task);
        assert!(timeout(PATIENCE * 3, &mut task).await.is_err());
        drop(server);
        assert!(matches!(task.await, Err(Ended::Broken(_))));
        assert!(link.send(b"a".to_vec(), 1, false).await.is_none());
    }

    #[tokio::test]
    async fn an_answer_that_nobody_asked_for_ends_the_link() {
        let (client, mut server) = tokio::io::duplex(64);
        let (_link, task) = Link::over(client, PATIENCE);
        server.write_all(b"+OK\r\n").await.expect("open");
        assert!(matches!(task.await, Err(Ended::Garbled)));
    }
}
