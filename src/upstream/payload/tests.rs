use super::*;
use proptest::prelude::*;

const MAX: usize = 16 * 1024;

fn parse(text: impl AsRef<[u8]>) -> Result<Quote, Unusable> {
    live(text.as_ref().to_vec(), MAX, 7)
}

fn ok(text: &str) -> Quote {
    parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn a_full_payload_keeps_every_field_as_written() {
    let quote = ok(concat!(
        r#"{"stockId":5930,"ts":1700000000100,"publishedAt":1700000000110,"at":"2026-07-06T09:00:01","#,
        r#""open":70500,"high":71100,"low":70400,"close":71000.10,"prevDayChangePct":1.2345,"#,
        r#""volume":9223372036854775808,"executionVolume":5,"value":8.7654321E+7,"seq":42,"extra":{"a":[1]}}"#
    ));
    assert_eq!(quote.id, InstrumentId::new(5930));
    assert_eq!(quote.version, Version { seq: Some(42), ts: Some(1_700_000_000_100), of_write: false });
    assert_eq!(quote.published_at, Some(1_700_000_000_110));
    assert_eq!((quote.arrived_us, quote.origin), (7, Origin::Live));
    for (field, text) in [
        (Field::Price, "71000.10"),
        (Field::PrevDayChangePct, "1.2345"),
        (Field::Volume, "9223372036854775808"),
        (Field::Open, "70500"),
        (Field::High, "71100"),
        (Field::Low, "70400"),
        (Field::Value, "8.7654321E+7"),
        (Field::At, r#""2026-07-06T09:00:01""#),
    ] {
        assert_eq!(quote.field(field), Some(text), "{field:?}");
    }
}

/// R32: reading decimals as floats moves the last digit or loses trailing zeros.
#[test]
fn decimals_keep_their_digits_live_and_stored() {
    for digits in ["117.63331139400017", "1.5777777777770001", "71000.10", "0.0", "1.0", "-0.5", "1e-7"] {
        let quote = ok(&format!(r#"{{"stockId":1,"close": {digits} }}"#));
        assert_eq!(quote.field(Field::Price), Some(digits));
        let value = format!(r#"{{"price":{digits},"stockId":1}}"#).into_bytes();
        let quote = stored(InstrumentId::new(1), value, None, MAX, 0).expect("usable");
        assert_eq!(quote.field(Field::Price), Some(digits));
    }
}

/// R09, its bad messages and their neighbours.
#[test]
fn what_cannot_be_told_to_an_instrument_is_refused_with_its_reason() {
    let deep = "[".repeat(10_000);
    for (payload, reason) in [
        ("", Unusable::NotJson),
        ("foo", Unusable::NotJson),
        ("{", Unusable::NotJson),
        (r#"{"stockId":1"#, Unusable::NotJson),
        (r#"{"stockId":1}x"#, Unusable::NotJson),
        (r#"{"stockId":1,}"#, Unusable::NotJson),
        (r#"{"stockId":1,"close":NaN}"#, Unusable::NotJson),
        (r#"{"stockId":01}"#, Unusable::NotJson),
        (r#"{"stockId":+1}"#, Unusable::NotJson),
        ("{\"stockId\":1,\"at\":\"a\nb\"}", Unusable::NotJson),
        (&deep, Unusable::NotAnObject),
        ("[]", Unusable::NotAnObject),
        (r#"[101,1]"#, Unusable::NotAnObject),
        ("null", Unusable::NotAnObject),
        ("5", Unusable::NotAnObject),
        (r#""x""#, Unusable::NotAnObject),
        ("{}", Unusable::NoInstrument),
        (r#"{"close":1}"#, Unusable::NoInstrument),
        (r#"{"stockId":null,"close":1}"#, Unusable::NoInstrument),
        (r#"{"stockId":"101","close":1}"#, Unusable::BadInstrument),
        (r#"{"stockId":101.5,"close":1}"#, Unusable::BadInstrument),
        (r#"{"stockId":1e2}"#, Unusable::BadInstrument),
        (r#"{"stockId":true}"#, Unusable::BadInstrument),
        (r#"{"stockId":[1]}"#, Unusable::BadInstrument),
        (r#"{"stockId":9223372036854775808}"#, Unusable::BadInstrument),
    ] {
        assert_eq!(parse(payload).map(|q| q.id), Err(reason), "{payload:.60}");
    }
    assert_eq!(parse([0xff, 0xfe, 0x00]).map(|q| q.id), Err(Unusable::NotUtf8));
    assert_eq!(parse(vec![b'x'; MAX + 1]).map(|q| q.id), Err(Unusable::TooLarge));
}

#[test]
fn an_instrument_alone_is_enough() {
    let quote = ok(r#" { "stockId" : -9223372036854775808 } "#);
    assert_eq!(quote.id, InstrumentId::new(i64::MIN));
    assert!(Field::ALL.iter().all(|&field| quote.field(field).is_none()));
    assert_eq!(quote.version, Version::default());
}

#[test]
fn a_field_of_the_wrong_type_is_left_out_and_the_rest_kept() {
    let quote = ok(concat!(
        r#"{"stockId":1,"ts":"5","publishedAt":1.5,"seq":-1,"close":"12","open":null,"high":true,"#,
        r#""low":[1],"value":{},"volume":3,"at":5}"#
    ));
    assert_eq!(quote.version, Version::default());
    assert_eq!(quote.published_at, None);
    for field in Field::ALL {
        assert_eq!(quote.field(field), (field == Field::Volume).then_some("3"), "{field:?}");
    }
}

#[test]
fn of_a_name_that_comes_twice_the_last_counts() {
    let quote = ok(r#"{"stockId":1,"close":1,"at":[1, 2],"close":2,"stockId":3,"at":"x","ts":4,"ts":null}"#);
    assert_eq!((quote.id.get(), quote.field(Field::Price)), (3, Some("2")));
    assert_eq!((quote.field(Field::At), quote.version.ts), (Some(r#""x""#), None));
}

#[test]
fn names_may_be_written_with_escapes() {
    assert_eq!(ok(r#"{"\u0073tockId":1}"#).id.get(), 1);
}

/// R45: a line break inside a `data:` line would end it.
#[test]
fn a_date_time_array_comes_out_on_one_line() {
    for (at, shown) in [
        ("[2026,7,6,9,0,1]", Some("[2026,7,6,9,0,1]")),
        ("[2026,\r\n 7,\t6\n]", Some("[2026,7,6]")),
        ("[ ]", Some("[]")),
        (r#"["a"]"#, None),
        ("[[1]]", None),
        (r#""a\n\nevent: x""#, Some(r#""a\n\nevent: x""#)),
    ] {
        let quote = ok(&format!(r#"{{"stockId":1,"at":{at},"close":5}}"#));
        assert_eq!((quote.field(Field::At), quote.field(Field::Price)), (shown, Some("5")), "{at}");
    }
}

#[test]
fn a_price_key_is_read_for_the_instrument_that_it_names() {
    let id = InstrumentId::new(101);
    let read = |text: &str, at| stored(id, text.into(), at, MAX, 9);
    let quote = read(r#"{"stockId":101,"price":5,"close":6,"ts":3}"#, Some(8)).expect("usable");
    assert_eq!((quote.field(Field::Price), quote.version.ts), (Some("5"), Some(3)));
    assert_eq!((quote.published_at, quote.arrived_us, quote.origin), (Some(8), 9, Origin::Stored));
    assert_eq!(read(r#"{"price":5}"#, None).expect("usable").id, id);
    let refused = |text| read(text, None).map(|q| q.id);
    assert_eq!(refused(r#"{"stockId":102,"price":5}"#), Err(Unusable::WrongInstrument));
    assert_eq!(refused(r#"{"stockId":"101"}"#), Err(Unusable::BadInstrument));
    assert_eq!(refused("[]"), Err(Unusable::NotAnObject));
}

proptest! {
    #[test]
    fn no_input_panics_and_every_field_is_one_line_of_json(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        check(parse(bytes));
    }

    #[test]
    fn mangled_payloads_give_only_json(at in 0..200usize, with in ".{0,3}", len in 0..5usize) {
        let mut text = String::from(
            "{\"stockId\":5930,\"ts\":1,\"at\":[2026, 7,\n6],\"close\":71000.10,\"volume\":12,\"seq\":4, \"x\":{}}",
        );
        let start = at.min(text.len());
        let end = (start + len).min(text.len());
        text.replace_range(start..end, &with);
        check(parse(text));
    }
}

fn check(result: Result<Quote, Unusable>) {
    let Ok(quote) = result else { return };
    for field in Field::ALL {
        if let Some(text) = quote.field(field) {
            assert!(!text.contains(['\n', '\r']), "{text:?}");
            serde_json::from_str::<&RawValue>(text).expect("valid JSON");
        }
    }
}
