use std::time::Duration;

use toml::Value;

use super::number::{Count, Size, Span};
use super::text::{Address, List, REDACTED, SecretText, Text};
use super::{Choice, Flag, Kind, Maybe, Raw};
use crate::config::check;

fn text(text: &str) -> Raw {
    Raw::Text(text.into())
}

fn toml(value: impl Into<Value>) -> Raw {
    Raw::Toml(value.into())
}

const SPAN: Span = Span { min: Duration::from_millis(10), max: Duration::from_secs(60) };
const SIZE: Size = Size { min: 16, max: 1 << 20 };
const COUNT: Count = Count { min: 1, max: 9 };

#[test]
fn durations_carry_their_unit() {
    for (written, expected) in [("45s", 45_000), ("500ms", 500), ("1m", 60_000), ("1s 500ms", 1_500)] {
        assert_eq!(SPAN.read(&toml(written)), Ok(Duration::from_millis(expected)), "{written}");
        assert_eq!(SPAN.read(&text(written)), Ok(Duration::from_millis(expected)), "{written}");
    }
    for refused in
        [toml("45"), toml(45), toml(0), toml("0"), toml(""), toml("s"), toml("-1s"), text("45"), text("0")]
    {
        let rule = SPAN.read(&refused).expect_err("not a duration with its unit");
        assert!(rule.contains("with its unit"), "{rule}");
    }
}

#[test]
fn a_zero_duration_is_a_value_like_any_other() {
    assert!(SPAN.read(&toml("0s")).is_err_and(|rule| rule.contains("from \"10ms\" to \"1m\"")));
    let from_zero = Span { min: Duration::ZERO, max: Duration::from_secs(1) };
    assert_eq!(from_zero.read(&toml("0s")), Ok(Duration::ZERO));
}

#[test]
fn sizes_are_bytes_or_carry_a_binary_unit() {
    for (written, bytes) in [("64 KiB", 65_536), ("64KiB", 65_536), ("1 MiB", 1 << 20), ("17 B", 17)] {
        assert_eq!(SIZE.read(&toml(written)), Ok(bytes), "{written}");
    }
    assert_eq!(SIZE.read(&toml(65_536)), Ok(65_536));
    assert_eq!(SIZE.read(&text("65536")), Ok(65_536));
    for refused in
        [toml("64 KB"), toml("65536"), toml("KiB"), toml(-1), toml(1.5), toml("18446744073709551615 GiB")]
    {
        assert!(SIZE.read(&refused).is_err_and(|rule| rule.contains("64 KiB")), "{refused:?}");
    }
    assert!(SIZE.read(&toml("2 MiB")).is_err_and(|rule| rule.contains("to \"1 MiB\"")));
}

#[test]
fn what_is_shown_is_read_as_the_same_value() {
    for bytes in [16, 1_000, 1_024, 65_536, 1 << 20] {
        let shown = SIZE.show(&bytes).expect("a size is shown");
        assert_eq!(SIZE.read(&Raw::Toml(shown)), Ok(bytes));
    }
    for ms in [10, 999, 1_500, 45_000, 60_000] {
        let span = Duration::from_millis(ms);
        let shown = SPAN.show(&span).expect("a duration is shown");
        assert_eq!(SPAN.read(&Raw::Toml(shown)), Ok(span));
    }
    let items = vec!["https://a.example".to_owned(), "*".to_owned()];
    let list = List(check::origin);
    assert_eq!(list.read(&Raw::Toml(list.show(&items).expect("a list is shown"))), Ok(items));
}

#[test]
fn counts_are_whole_and_within_bounds() {
    let read = |raw: &Raw| -> Result<u32, String> { COUNT.read(raw) };
    assert_eq!(read(&toml(9)), Ok(9));
    assert_eq!(read(&text("1")), Ok(1));
    for refused in [toml(0), toml(10), toml(-1), toml("5"), toml(5.0), text("0"), text("five"), text("")] {
        assert!(read(&refused).is_err_and(|rule| rule.contains("from 1 to 9")), "{refused:?}");
    }
}

#[test]
fn flags_and_choices_are_exact() {
    assert_eq!(Flag.read(&toml(true)), Ok(true));
    assert_eq!(Flag.read(&text("false")), Ok(false));
    for refused in [toml("true"), toml(1), text("yes"), text("TRUE"), text("1")] {
        assert!(Flag.read(&refused).is_err(), "{refused:?}");
    }
    let choice = Choice(&[("left", 1), ("right", 2)]);
    assert_eq!(choice.read(&text("right")), Ok(2));
    assert_eq!(choice.read(&toml("up")), Err("must be one of \"left\", \"right\"".into()));
}

#[test]
fn lists_are_separated_by_commas_in_the_environment_only() {
    let list = List(check::node);
    let expected = Ok(vec!["a:1".to_owned(), "b:2".to_owned()]);
    assert_eq!(list.read(&text(" a:1, b:2,")), expected);
    assert_eq!(list.read(&toml(vec!["a:1", "b:2"])), expected);
    assert!(list.read(&toml("a:1,b:2")).is_err());
    assert!(list.read(&toml(vec![1])).is_err());
    assert!(list.read(&text("a:1,b")).is_err_and(|rule| rule.starts_with("each entry must be host:port")));
}

#[test]
fn secrets_are_neither_empty_nor_the_placeholder_and_never_shown() {
    assert!(SecretText.read(&toml("")).is_err());
    assert!(SecretText.read(&toml(REDACTED)).is_err());
    let secret = SecretText.read(&toml("hush")).expect("a secret");
    assert_eq!(secret.as_ref().map(|secret| secret.expose()), Some("hush"));
    assert_eq!(SecretText.show(&secret), Some(Value::String(REDACTED.into())));
    assert_eq!(format!("{secret:?}"), "Some([redacted])");
}

#[test]
fn absent_values_are_not_shown() {
    let kind = Maybe(Text(check::not_blank));
    assert_eq!(kind.show(&None), None);
    assert_eq!(kind.read(&toml("a")), Ok(Some("a".into())));
    assert!(kind.read(&toml(" ")).is_err());
}

#[test]
fn addresses_have_a_port() {
    assert!(Address.read(&toml("[::1]:0")).is_ok());
    for refused in [toml("127.0.0.1"), toml(8080), toml(":8080"), toml("localhost:8080")] {
        assert!(Address.read(&refused).is_err(), "{refused:?}");
    }
}
