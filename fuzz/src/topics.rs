//! Topics and instrument ids: a naive reading agrees, every topic has one spelling of its own, and partitions are
//! Java's.

use tickbridge::config;
use tickbridge::instrument::InstrumentId;
use tickbridge::protocol::client::TopicRequest;
use tickbridge::topic::Topic;
use tickbridge::upstream::channels::{Channel, ChannelNames};

/// Longest spelling of an id.
const LONGEST: usize = 40;

/// See the module.
pub fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let topic = Topic::parse(&text);
    assert_eq!(topic.map(|topic| topic.instrument().get()), naive(&text), "{text:?}");
    if let Some(topic) = topic {
        spelling(topic);
        partitions(topic.instrument());
    }
    query(&text);
    channel(&text);
}

/// The same by way of a larger number and character by character.
fn naive(text: &str) -> Option<i64> {
    let id = text.strip_prefix("quote:")?;
    let (sign, digits) = id.strip_prefix('-').map_or((1, id), |digits| (-1, digits));
    if digits.is_empty() || id.len() > LONGEST {
        return None;
    }
    let mut number: i128 = 0;
    for digit in digits.chars() {
        if !digit.is_ascii_digit() {
            return None;
        }
        // Beyond 64 bits it only has to stay there.
        number = (number * 10 + i128::from(digit as u32 - '0' as u32)).min(1 << 100);
    }
    i64::try_from(sign * number).ok()
}

fn spelling(topic: Topic) {
    let canonical = topic.to_string();
    assert_eq!(Topic::parse(&canonical), Some(topic));
    assert_eq!(canonical, format!("quote:{}", topic.instrument().get()));
}

fn partitions(id: InstrumentId) {
    let hash = (id.get() ^ (id.get() as u64 >> 32) as i64) as i32;
    for n in [1, 2, 7, 64, 16_384, u32::MAX] {
        let expected = ((i64::from(hash) % i64::from(n)) + i64::from(n)) % i64::from(n);
        assert_eq!(i64::from(id.partition(n)), expected, "{id} among {n}");
    }
}

/// Each part is a topic or refused as it was written, and is so once.
fn query(text: &str) {
    let request = TopicRequest::from_query(text);
    let (mut known, mut refused) = (Vec::new(), Vec::new());
    let mut rejected = request.rejected.iter();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        match Topic::parse(part) {
            Some(topic) if !known.contains(&topic) => known.push(topic),
            Some(_) => {}
            None if !refused.contains(&part) => {
                let json = rejected.next().expect("what isn't a topic is refused");
                super::assert_one_line_of_json(json.as_bytes());
                assert_eq!(serde_json::from_str::<String>(json).ok().as_deref(), Some(part));
                refused.push(part);
            }
            None => {}
        }
    }
    assert_eq!((request.topics, rejected.next()), (known, None));
}

fn channel(text: &str) {
    let names = |kind| {
        let channel = config::Channel { kind, partitions: 64, ..config::Channel::default() };
        ChannelNames::new(&config::Redis { channel, ..config::Redis::default() }, "replica")
    };
    for kind in [config::ChannelKind::Classic, config::ChannelKind::Sharded] {
        let names = names(kind);
        for name in [text.to_owned(), format!("{}{text}", names.name(Channel::Base))] {
            if let Some(channel) = names.parse(&name) {
                assert_eq!(names.parse(&names.name(channel)), Some(channel), "{name:?}");
                assert!(names.slot(channel) < 16_384);
            }
        }
    }
}
