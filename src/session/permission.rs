//! What a token lets its bearer see: patterns over names, read from a claim.
//!
//! A claim is a list of patterns, such as `["5930", "100..199"]`, and allows what any of them names. There is
//! one [`Grant`] per kind of name. Topics are named by instrument ids and granted by [`Ids`]; names that are
//! text are granted by [`Names`]. A further kind needs a field in [`Permissions`], the claim's name in the
//! configuration, and a question at the door.
//!
//! Invariants:
//! - A claim that can't be read as a whole grants nothing: its token is refused.
//! - What patterns can cost is bounded by [`MAX_PATTERNS`], in memory per session and in time per name.
//!
//! Not here: which claim it is and what its absence means (`edge::auth`).

use crate::instrument::InstrumentId;
use crate::topic::Topic;
use std::fmt;
use std::sync::Arc;

/// Patterns of one claim at most: 4 KiB of instrument ids per session. Who needs more names ranges.
pub const MAX_PATTERNS: usize = 256;

/// Everything that a principal may see.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Permissions {
    /// Instruments whose quotes it may have.
    pub topics: Grant<Ids>,
    /// Streams that it may read.
    pub streams: Grant<Names>,
}

impl Permissions {
    /// Whether the topic's quotes may be seen.
    pub fn allow(&self, topic: Topic) -> bool {
        self.topics.allows(&topic.instrument())
    }
}

/// One pattern of a kind of name.
pub trait Pattern: Sized + fmt::Display {
    /// What it is compared with.
    type Name: ?Sized;

    /// Reads a pattern as it stands in a claim.
    fn parse(text: &str) -> Option<Self>;

    /// Whether it names `name`.
    fn names(&self, name: &Self::Name) -> bool;
}

/// What is granted of one kind of name. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Grant<P> {
    /// Everything, because nothing limits it.
    #[default]
    All,
    /// What any of the patterns names; nothing where there are none.
    Only(Arc<[P]>),
}

impl<P: Pattern> Grant<P> {
    /// Nothing.
    pub fn none() -> Self {
        Self::Only(Arc::new([]))
    }

    /// Reads the patterns of a claim; `None` if one of them can't be read or there are too many.
    pub fn read<T: AsRef<str>>(patterns: impl IntoIterator<Item = T>) -> Option<Self> {
        let mut patterns = patterns.into_iter();
        let read = patterns.by_ref().take(MAX_PATTERNS).map(|text| P::parse(text.as_ref()));
        let read: Arc<[P]> = read.collect::<Option<_>>()?;
        patterns.next().is_none().then_some(Self::Only(read))
    }

    /// Whether `name` is granted.
    pub fn allows(&self, name: &P::Name) -> bool {
        match self {
            Self::All => true,
            Self::Only(patterns) => patterns.iter().any(|pattern| pattern.names(name)),
        }
    }

    /// The patterns as [`Grant::read`] reads them; `None` where nothing limits it.
    pub fn patterns(&self) -> Option<Vec<String>> {
        match self {
            Self::All => None,
            Self::Only(patterns) => Some(patterns.iter().map(P::to_string).collect()),
        }
    }
}

/// Instrument ids: `5930`, a range with both its ends such as `100..199`, `100..` or `..-1`, or `*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ids {
    first: i64,
    last: i64,
}

impl Pattern for Ids {
    type Name = InstrumentId;

    fn parse(text: &str) -> Option<Self> {
        let end = |text: &str, open: i64| match text {
            "" => Some(open),
            id => InstrumentId::parse(id).map(InstrumentId::get),
        };
        if text == "*" {
            return Some(Self { first: i64::MIN, last: i64::MAX });
        }
        let Some((first, last)) = text.split_once("..") else {
            let id = InstrumentId::parse(text)?.get();
            return Some(Self { first: id, last: id });
        };
        // Without any end it is a slip; `*` says it on purpose. So is a range that holds nothing.
        let range = Self { first: end(first, i64::MIN)?, last: end(last, i64::MAX)? };
        (text != ".." && range.first <= range.last).then_some(range)
    }

    fn names(&self, name: &InstrumentId) -> bool {
        (self.first..=self.last).contains(&name.get())
    }
}

impl fmt::Display for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first, self.last) {
            (i64::MIN, i64::MAX) => f.write_str("*"),
            (first, last) if first == last => write!(f, "{first}"),
            (first, last) => write!(f, "{first}..{last}"),
        }
    }
}

/// Names that are text: the name itself, or the beginning of names with a `*` at the end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    beginning: Arc<str>,
    /// Whether more may follow.
    open: bool,
}

/// Longest pattern of text in bytes.
const MAX_NAME: usize = 256;

impl Pattern for Names {
    type Name = str;

    fn parse(text: &str) -> Option<Self> {
        let (beginning, open) = text.strip_suffix('*').map_or((text, false), |beginning| (beginning, true));
        // A star elsewhere would look like a wildcard and be none.
        let usable = !text.is_empty() && text.len() <= MAX_NAME && !beginning.contains('*');
        usable.then(|| Self { beginning: beginning.into(), open })
    }

    fn names(&self, name: &str) -> bool {
        if self.open { name.starts_with(&*self.beginning) } else { *self.beginning == *name }
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.beginning, if self.open { "*" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(patterns: &[&str]) -> Option<Grant<Ids>> {
        Grant::read(patterns)
    }

    fn allowed(patterns: &[&str], id: i64) -> bool {
        ids(patterns).expect("readable").allows(&InstrumentId::new(id))
    }

    #[test]
    fn ids_are_named_one_by_one_by_range_or_all() {
        for (patterns, inside, outside) in [
            (&["5930"][..], &[5930][..], &[5929, 5931, -5930, 59300][..]),
            (&["005"], &[5], &[0, 50]),
            (&["-5"], &[-5], &[5]),
            (&["100..199"], &[100, 150, 199], &[99, 200, -100]),
            (&["-10..-1"], &[-10, -1], &[-11, 0]),
            (&["100.."], &[100, i64::MAX], &[99, i64::MIN]),
            (&["..-1"], &[-1, i64::MIN], &[0]),
            (&["*"], &[0, i64::MIN, i64::MAX], &[]),
            (&["1", "7..8"], &[1, 7, 8], &[2, 9]),
            (&[], &[], &[0, 1]),
        ] {
            assert!(inside.iter().all(|&id| allowed(patterns, id)), "{patterns:?}");
            assert!(!outside.iter().any(|&id| allowed(patterns, id)), "{patterns:?}");
        }
        assert!(Grant::<Ids>::All.allows(&InstrumentId::new(1)));
    }

    #[test]
    fn one_bad_pattern_spoils_the_claim() {
        for bad in ["", "+5", " 5", "5*", "**", "..", "9..1", "1..2..3", "a..b", "1-2", "quote:1", "1..x"] {
            assert_eq!(ids(&["1", bad]), None, "{bad:?}");
        }
        for bad in ["", "*a", "a*b", "a**", &"x".repeat(MAX_NAME + 1)] {
            assert_eq!(Grant::<Names>::read(["a", bad]), None, "{bad:?}");
        }
    }

    #[test]
    fn patterns_are_bounded_in_number() {
        let many: Vec<_> = (0..=MAX_PATTERNS).map(|n| n.to_string()).collect();
        assert_eq!(Grant::<Ids>::read(&many), None);
        assert!(Grant::<Ids>::read(&many[1..]).is_some());
    }

    #[test]
    fn text_is_named_as_a_whole_or_by_its_beginning() {
        let names =
            |pattern: &str, name: &str| Grant::<Names>::read([pattern]).expect("readable").allows(name);
        assert!(names("chat:7", "chat:7") && !names("chat:7", "chat:77") && !names("chat:7", "chat:"));
        assert!(names("chat:*", "chat:7") && names("chat:*", "chat:") && !names("chat:*", "Chat:7"));
        assert!(names("*", "") && names("*", "anything"));
        assert!(!Grant::<Names>::none().allows("") && Grant::<Names>::All.allows(""));
    }

    #[test]
    fn patterns_survive_being_written_down() {
        for patterns in [&["*"][..], &["5", "-5", "1..2", "..0", "0..", "-9..-1"], &[]] {
            let grant = ids(patterns).expect("readable");
            let written = grant.patterns().expect("limited");
            assert_eq!(Grant::read(&written), Some(grant));
        }
        let names = Grant::<Names>::read(["a", "a*", "*"]).expect("readable");
        assert_eq!(Grant::read(names.patterns().expect("limited")), Some(names));
        assert_eq!(Grant::<Ids>::All.patterns(), None);
    }
}
