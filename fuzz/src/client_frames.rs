//! A client's bytes after the upgrade: how they are cut up changes nothing, what goes back is well-formed, and a
//! message in pieces is the same message.
//!
//! The bytes go the way that they go in the product: through the lane's reader into tungstenite, and from there
//! to the lane, whose session writes into a pipe that always takes everything.

use super::{Choices, assert_one_line_of_json};
use std::cell::RefCell;
use std::future::Future;
use std::io::{self, Read};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tickbridge::catch_up::{CatchUp, SnapshotSource, StoredQuotes};
use tickbridge::clock::Now;
use tickbridge::config::Config;
use tickbridge::config::live::LiveLimits;
use tickbridge::fanout::inbox::Inbox;
use tickbridge::fanout::{Fanout, QuoteFeed};
use tickbridge::instrument::InstrumentId;
use tickbridge::lane::delivery::{Admitted, Delivery, Key, Shared};
use tickbridge::lane::frames::{Frames, Turn};
use tickbridge::lane::session::Pipe;
use tickbridge::protocol::close::CloseReason;
use tickbridge::session::standing::Timers;
use tickbridge::session::{AuthFailure, Authenticator, Principal, Transport};

const MAX_MESSAGE: usize = 4 * 1024;
const NOW: Now = Now { mono: Duration::from_secs(1), unix_us: 1_700_000_000_000_000 };

const TEXT: u8 = 0x81;
const CLOSE: u8 = 0x88;
const PONG: u8 = 0x8a;

/// The shortest message has 6 bytes, and the answer that it is none about 110.
const ANSWER_PER_BYTE: usize = 24;

/// See the module.
pub fn check(input: &[u8]) {
    let mut choices = Choices(input);
    match choices.byte() % 2 {
        0 => any_bytes(&mut choices),
        _ => messages_in_pieces(&mut choices),
    }
}

fn any_bytes(choices: &mut Choices<'_>) {
    let cuts = choices.bytes(16);
    let bytes = choices.0;
    let mut whole = World::new(Vec::new());
    whole.hear(bytes);
    let mut cut = World::new(Vec::new());
    let mut rest = bytes;
    for &n in cuts {
        let (piece, after) = rest.split_at(usize::from(n).min(rest.len()));
        cut.hear(piece);
        rest = after;
    }
    cut.hear(rest);
    // What came in one packet with the request.
    let (ahead, rest) = bytes.split_at(cuts.first().map_or(0, |&n| usize::from(n)).min(bytes.len()));
    let mut after_upgrade = World::new(ahead.to_vec());
    after_upgrade.hear(rest);
    let wire = whole.end();
    assert_eq!(cut.end(), wire, "{cuts:?} cuts change the answers");
    assert_eq!(after_upgrade.end(), wire, "reading {} bytes ahead changes the answers", ahead.len());
    assert!(wire.len() <= ANSWER_PER_BYTE * bytes.len() + 1_000, "{} for {}", wire.len(), bytes.len());
}

/// Pings as messages, text or binary, in fragments with control frames between them.
fn messages_in_pieces(choices: &mut Choices<'_>) {
    let mut bytes = Vec::new();
    let mut n_messages = 0;
    let mut pings = Vec::new();
    while !choices.is_empty() && bytes.len() < 4 * MAX_MESSAGE {
        let shape = choices.byte();
        let opcode = if shape & 1 == 0 { 1 } else { 2 };
        let message = format!(r#"{{"type":"ping","ts":{n_messages}}}"#);
        n_messages += 1;
        let mut rest = message.as_bytes();
        let mut first = opcode;
        for _ in 0..shape >> 1 & 3 {
            let (piece, after) = rest.split_at(usize::from(choices.byte()) % (rest.len() + 1));
            push_frame(&mut bytes, first, piece, choices.byte());
            (first, rest) = (0, after);
            if shape & 8 != 0 {
                let payload = choices.bytes(125);
                push_frame(&mut bytes, 0x80 | 9, payload, choices.byte());
                pings.push(payload.to_vec());
            }
        }
        push_frame(&mut bytes, 0x80 | first, rest, choices.byte());
    }
    push_frame(&mut bytes, CLOSE, &1_000_u16.to_be_bytes(), 7);
    let mut world = World::new(Vec::new());
    world.hear(&bytes);
    assert_eq!(world.over, Some(CloseReason::Normal));
    let frames = frames(&world.end());
    let of = |first: u8| frames.iter().filter(move |frame| frame.0 == first).map(|frame| frame.1.clone());
    let answer = |ts| format!(r#"{{"type":"pong","ts":{ts},"server_ts":{}}}"#, NOW.unix_ms()).into_bytes();
    assert_eq!(of(TEXT).collect::<Vec<_>>(), (0..n_messages).map(answer).collect::<Vec<_>>());
    assert_eq!(of(PONG).collect::<Vec<_>>(), pings);
    assert_eq!(frames.last(), Some(&(CLOSE, 1_000_u16.to_be_bytes().to_vec())));
}

/// A masked frame; of the first byte everything but the opcode is as given.
fn push_frame(out: &mut Vec<u8>, first: u8, payload: &[u8], mask: u8) {
    let length = u8::try_from(payload.len()).expect("pieces are short");
    assert!(length < 126);
    let key = [mask, mask.wrapping_mul(3), !mask, mask.rotate_left(3)];
    out.extend([first, 0x80 | length]);
    out.extend(key);
    out.extend(payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
}

/// The frames of a server's bytes, each judged.
fn frames(wire: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    let mut rest = wire;
    while let [first, length, after @ ..] = rest {
        let (length, after) = match (*length, after) {
            (n @ 0..=125, after) => (usize::from(n), after),
            (126, [high, low, after @ ..]) => (usize::from(u16::from_be_bytes([*high, *low])), after),
            (127, after) => {
                let (length, after) = after.split_first_chunk().expect("a whole header");
                (u64::from_be_bytes(*length) as usize, after)
            }
            _ => panic!("a frame of the server is masked or torn"),
        };
        assert!(after.len() >= length, "a frame is torn");
        let (payload, after) = after.split_at(length);
        match *first {
            TEXT => assert_one_line_of_json(payload),
            PONG => assert!(payload.len() <= 125),
            CLOSE => assert!(after.is_empty() && payload.len() <= 125, "the close is the last frame"),
            other => panic!("a server sends no frame {other:#x}"),
        }
        frames.push((*first, payload.to_vec()));
        rest = after;
    }
    assert!(rest.is_empty(), "a frame is torn");
    frames
}

/// One lane with one session.
struct World {
    lane: Delivery<Wire>,
    key: Key,
    wire: Wire,
    frames: Frames,
    over: Option<CloseReason>,
}

impl World {
    fn new(read_ahead: Vec<u8>) -> Self {
        let inbox = Arc::new(Inbox::default());
        let fanout = Arc::new(Fanout::new(vec![inbox], Arc::new(LiveFeed), 1_000));
        let catch_up = Arc::new(CatchUp::new(Arc::clone(&fanout), Arc::new(NoSource), Duration::ZERO));
        let mut config = Config::default();
        config.session.max_topics = 4;
        config.session.max_inbound_per_second = 1_000_000_000;
        let limits = LiveLimits::new(&config);
        let timers = Timers::new(&config, Arc::clone(&limits));
        let shared = Shared {
            fanout,
            catch_up,
            authenticator: Arc::new(NoTokens),
            watchers: None,
            timers,
            anonymous: true,
            limits,
            user_places: None,
            max_message_bytes: MAX_MESSAGE,
            flush_interval: Duration::ZERO,
        };
        let mut lane = Delivery::new(0, Arc::new(shared), NOW);
        let wire = Wire::default();
        let admitted = Admitted { principal: None, permit: Box::new(()) };
        let key = lane.admit(wire.clone(), b"", Transport::Ws, admitted, NOW);
        let has_ahead = !read_ahead.is_empty();
        let mut world = Self { lane, key, wire, frames: Frames::new(read_ahead, MAX_MESSAGE), over: None };
        if has_ahead {
            world.hear(&[]);
        }
        world
    }

    /// Bytes arrive in one packet.
    fn hear(&mut self, mut packet: &[u8]) {
        while self.over.is_none() {
            match self.frames.turn(&mut self.lane, self.key, Packet(&mut packet), NOW) {
                Turn::Idle => return,
                Turn::More => {}
                Turn::Over(reason) => {
                    self.lane.close(self.key, reason, NOW);
                    self.over = Some(reason);
                }
            }
        }
    }

    /// Everything that was written, after checks.
    fn end(mut self) -> Vec<u8> {
        let books = self.lane.books();
        assert_eq!(books.imbalance(), 0);
        assert_eq!(books.sessions[0], u64::from(self.over.is_none()));
        let wire = self.wire.0.take();
        let frames = frames(&wire);
        let has_close = frames.last().is_some_and(|frame| frame.0 == CLOSE);
        assert_eq!(has_close, self.over.is_some_and(|reason| reason != CloseReason::Gone), "{:?}", self.over);
        wire
    }
}

/// What a socket holds.
struct Packet<'a, 'b>(&'a mut &'b [u8]);

impl Read for Packet<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buffer)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            n => Ok(n),
        }
    }
}

#[derive(Clone, Default)]
struct Wire(Rc<RefCell<Vec<u8>>>);

impl Pipe for Wire {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn finish(&self, _: bool) {}
}

struct LiveFeed;

impl QuoteFeed for LiveFeed {
    fn is_live(&self, _: InstrumentId) -> bool {
        true
    }
    fn wanted(&self, _: InstrumentId) {}
    fn unwanted(&self, _: InstrumentId) {}
}

struct NoSource;

impl SnapshotSource for NoSource {
    fn read(&self, _: Vec<InstrumentId>) -> Pin<Box<dyn Future<Output = StoredQuotes> + Send + '_>> {
        Box::pin(async { Vec::new() })
    }
}

struct NoTokens;

impl Authenticator for NoTokens {
    fn verify(&self, _: &str, _: Now) -> Result<Principal, AuthFailure> {
        Err(AuthFailure::Malformed)
    }
}
