//! Reads what Redis answers about streams.

use crate::entry::{Content, Entry, EntryId};
use crate::stream::Info;
use redis::Value;

/// The entries of `XRANGE` and `XREVRANGE`, or of one stream in `XREAD`. `None` if it is no list of entries.
pub fn entries(value: Value) -> Option<Vec<Entry>> {
    let Value::Array(items) = value else { return (value == Value::Nil).then(Vec::new) };
    items.into_iter().map(entry).collect()
}

/// Each stream of an `XREAD` with its key. Those without entries are left out by Redis, and if all are, the answer
/// is nil.
pub fn streams(value: Value) -> Option<Vec<(Vec<u8>, Vec<Entry>)>> {
    let Value::Array(items) = value else { return (value == Value::Nil).then(Vec::new) };
    let stream = |value| {
        let Value::Array(pair) = value else { return None };
        let [Value::BulkString(key), read] = <[Value; 2]>::try_from(pair).ok()? else { return None };
        Some((key, entries(read)?))
    };
    items.into_iter().map(stream).collect()
}

/// An entry's id.
pub fn id(value: &Value) -> Option<EntryId> {
    match value {
        Value::BulkString(text) => EntryId::parse(std::str::from_utf8(text).ok()?),
        Value::SimpleString(text) => EntryId::parse(text),
        _ => None,
    }
}

fn entry(value: Value) -> Option<Entry> {
    let Value::Array(pair) = value else { return None };
    let [at, fields] = <[Value; 2]>::try_from(pair).ok()?;
    let mut content = Content::default();
    // A deleted entry has none.
    let fields = if let Value::Array(fields) = fields { fields } else { Vec::new() };
    let mut fields = fields.into_iter();
    while let (Some(Value::BulkString(name)), Some(Value::BulkString(value))) = (fields.next(), fields.next())
    {
        let place = match name.as_slice() {
            b"event" => &mut content.event,
            b"data" => &mut content.data,
            b"end" => &mut content.end,
            _ => continue,
        };
        *place = Some(value.into());
    }
    Some(Entry { id: id(&at)?, content })
}

/// What `XINFO STREAM` knows; `None` where there is no stream.
pub fn info(value: Value) -> Option<Info> {
    let Value::Array(items) = value else { return None };
    let mut info = Info::default();
    let mut items = items.into_iter();
    while let (Some(Value::BulkString(name)), Some(value)) = (items.next(), items.next()) {
        match (name.as_slice(), value) {
            (b"length", Value::Int(n)) => info.length = u64::try_from(n).ok()?,
            (b"entries-added", Value::Int(n)) => info.added = u64::try_from(n).ok(),
            (b"last-generated-id", value) => info.last_id = id(&value)?,
            (b"first-entry", value @ Value::Array(_)) => info.first_id = Some(entry(value)?.id),
            (b"last-entry", value @ Value::Array(_)) => info.ended = entry(value)?.content.end.is_some(),
            _ => {}
        }
    }
    Some(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn raw(id: &str, fields: &[&str]) -> Value {
        Value::Array(vec![bulk(id), Value::Array(fields.iter().map(|field| bulk(field)).collect())])
    }

    #[test]
    fn known_fields_are_read_and_others_ignored() {
        let value = Value::Array(vec![
            raw("1-0", &["event", "token", "x", "y", "data", "a"]),
            raw("1-1", &["end", "done"]),
            Value::Array(vec![bulk("1-2"), Value::Nil]),
        ]);
        let read = entries(value).expect("entries");
        let texts = |i: usize| {
            let content = &read[i].content;
            [&content.event, &content.data, &content.end].map(|f| f.as_ref().map(|b| b.to_vec()))
        };
        let text = |text: &str| Some(text.as_bytes().to_vec());
        assert_eq!(texts(0), [text("token"), text("a"), None]);
        assert_eq!(texts(1), [None, None, text("done")]);
        assert_eq!(texts(2), [None, None, None]);
        assert_eq!(entries(Value::Nil), Some(Vec::new()));
        assert_eq!(entries(Value::Int(1)), None);
        assert_eq!(entries(Value::Array(vec![bulk("1-0")])), None);
    }

    #[test]
    fn what_is_known_of_a_stream_is_read_by_name() {
        let value = Value::Array(vec![
            bulk("length"),
            Value::Int(2),
            bulk("radix-tree-keys"),
            Value::Int(1),
            bulk("last-generated-id"),
            bulk("9-1"),
            bulk("entries-added"),
            Value::Int(7),
            bulk("first-entry"),
            raw("8-0", &["data", "a"]),
            bulk("last-entry"),
            raw("9-1", &["end", "done"]),
        ]);
        let known = info(value).expect("a stream");
        assert_eq!((known.length, known.added, known.n_trimmed()), (2, Some(7), Some(5)));
        assert_eq!(known.last_id, EntryId { ms: 9, seq: 1 });
        assert_eq!(known.first_id, Some(EntryId { ms: 8, seq: 0 }));
        assert!(known.ended);
        assert!(info(Value::Nil).is_none());
    }
}
