//! One JSON text that serves as payload and as price key.

use crate::quote::{Field, Quote};

/// Adds to `text`, a payload that was read as `quote`, what a price key has and the payload lacks: the
/// `price`; and when it was published, if it doesn't say.
///
/// A name may come twice by that: readers of either kind take the last.
pub fn complete(text: &mut Vec<u8>, quote: &Quote, published_ms: i64) {
    let mut more = String::new();
    if quote.published_at.is_none() {
        more.push_str(&format!(",\"publishedAt\":{published_ms}"));
    }
    if let Some(price) = quote.field(Field::Price) {
        more.push_str(&format!(",\"price\":{price}"));
    }
    if let Some(end) = text.iter().rposition(|&b| b == b'}') {
        text.splice(end..end, more.into_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::payload;

    #[test]
    fn a_completed_payload_reads_the_same_live_and_stored() {
        let mut text = br#"{"stockId":7,"ts":5,"close":71000.10,"price":1,"x":{"y":[1]}} "#.to_vec();
        let quote = payload::live(text.clone(), 1_000, 0).expect("usable");
        complete(&mut text, &quote, 9);
        let live = payload::live(text.clone(), 1_000, 0).expect("usable");
        let stored = payload::stored(quote.id, text, None, 1_000, 0).expect("usable");
        assert!(live.same_content(&stored) && live.same_content(&quote));
        assert_eq!((live.field(Field::Price), live.published_at), (Some("71000.10"), Some(9)));
        assert_eq!((stored.version, stored.published_at), (quote.version, Some(9)));
    }

    #[test]
    fn what_a_payload_says_itself_is_left_alone() {
        let mut text = br#"{"stockId":7,"publishedAt":3}"#.to_vec();
        let before = text.clone();
        let quote = payload::live(text.clone(), 1_000, 0).expect("usable");
        complete(&mut text, &quote, 9);
        assert_eq!(text, before);
    }
}
