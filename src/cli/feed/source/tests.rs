use super::*;
use std::collections::HashMap;

fn replay(text: &str, loops: usize) -> Result<Replay, ReplayError> {
    Replay::read(text.as_bytes(), loops)
}

fn text(number: &Decimal) -> &str {
    match number {
        Decimal::Text(text) => text,
        Decimal::Scaled { .. } => panic!("not a text: {number:?}"),
    }
}

#[test]
fn a_replay_passes_every_price_through_in_the_order_of_the_file() {
    let csv = "rownames,DAX,\"SMI\"\n1,1628.75,1678.10\n2,1613.63,0.0\n";
    let steps: Vec<_> =
        replay(csv, 2).expect("good").map(|s| (s.id.get(), text(&s.price).to_owned())).collect();
    let once = [(1, "1628.75"), (2, "1678.10"), (1, "1613.63"), (2, "0.0")];
    let twice: Vec<_> = once.iter().chain(&once).map(|&(id, text)| (id, text.to_owned())).collect();
    assert_eq!(steps, twice);
}

#[test]
fn a_replay_knows_its_instruments_and_their_daily_change() {
    let replay = replay("rownames,DAX,\"SMI\"\n1,100,50\n2,101,49.5\n", 1).expect("good");
    assert_eq!(replay.names().collect::<Vec<_>>(), ["DAX", "SMI"]);
    let changes: Vec<_> = replay.map(|s| s.prev_day_change_pct).collect();
    let scaled = |units| Some(Decimal::Scaled { units, digits: 4 });
    assert_eq!(changes, [None, None, scaled(10_000), scaled(-10_000)]);
}

#[test]
fn the_index_prices_of_the_project_are_replayable() {
    let file = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/data/eustockmarkets.csv")).expect("file");
    let replay = Replay::read(file.as_slice(), 1).expect("good");
    assert_eq!(replay.names().collect::<Vec<_>>(), ["DAX", "SMI", "CAC", "FTSE"]);
    assert_eq!(replay.count(), 1860 * 4);
}

#[test]
fn an_unusable_file_names_the_line() {
    let cases = [
        ("", "the file to replay needs a header with an instrument and at least one row"),
        ("rownames\n1\n", "the file to replay needs a header with an instrument and at least one row"),
        ("rownames,DAX\n", "the file to replay needs a header with an instrument and at least one row"),
        ("rownames,DAX\n1,1.5\n2,1,2\n", "line 3 of the file to replay has 2 prices instead of 1"),
        ("rownames,DAX\n1,NA\n", "line 2 of the file to replay: `NA` is no plain decimal number"),
        ("rownames,DAX\n1,01\n", "line 2 of the file to replay: `01` is no plain decimal number"),
        ("rownames,DAX\n1,1.\n", "line 2 of the file to replay: `1.` is no plain decimal number"),
    ];
    for (csv, message) in cases {
        assert_eq!(replay(csv, 1).map(|_| ()).map_err(|e| e.to_string()), Err(message.into()), "{csv:?}");
    }
}

#[test]
fn every_instrument_of_a_walk_gets_a_price_before_any_gets_two() {
    let ids: Vec<_> = RandomWalk::new(50, 1).take(50).map(|s| s.id.get()).collect();
    assert_eq!(ids, (1..=50).collect::<Vec<_>>());
}

#[test]
fn a_walk_stays_positive_and_its_day_contains_its_price() {
    let mut volumes = HashMap::new();
    for statement in RandomWalk::new(10, 7).take(100_000) {
        let day = statement.day.expect("a walk has a day");
        let [price, low, high] = [statement.price, day.low, day.high].map(|number| match number {
            Decimal::Scaled { units, .. } => units,
            Decimal::Text(_) => panic!("a walk has no texts"),
        });
        assert!(0 < low && low <= price && price <= high);
        let volume = statement.volume.expect("a walk has a volume");
        assert!(volumes.insert(statement.id, volume).is_none_or(|before| before < volume));
    }
}

#[test]
fn a_walk_is_repeatable_by_its_seed() {
    let steps = |seed| RandomWalk::new(5, seed).take(100).collect::<Vec<_>>();
    assert_eq!(steps(3), steps(3));
    assert_ne!(steps(3), steps(4));
}
