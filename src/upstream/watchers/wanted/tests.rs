use super::*;
use proptest::prelude::*;

fn user(name: &str) -> Arc<str> {
    name.into()
}

fn id(id: i64) -> InstrumentId {
    InstrumentId::new(id)
}

fn change(at: i64, add: &[&str], remove: &[&str]) -> Change {
    let users = |names: &[&str]| names.iter().map(|name| user(name)).collect();
    Change { id: id(at), add: users(add), remove: users(remove) }
}

#[test]
fn only_the_first_and_the_last_session_of_a_user_are_written() {
    let mut wanted = Wanted::new(10);
    for _ in 0..2 {
        assert!(wanted.watched(&user("7"), id(1)));
    }
    let added = wanted.take_changes(10);
    assert_eq!(added, [change(1, &["7"], &[])]);
    wanted.written(&added[0]);
    wanted.unwatched(&user("7"), id(1));
    assert_eq!(wanted.take_changes(10), []);
    wanted.unwatched(&user("7"), id(1));
    let removed = wanted.take_changes(10);
    assert_eq!(removed, [change(1, &[], &["7"])]);
    assert_eq!(wanted.n_pairs(), 1, "known until the removal is written");
    wanted.written(&removed[0]);
    assert_eq!((wanted.n_pairs(), wanted.n_instruments()), (0, 0));
}

#[test]
fn a_user_who_comes_back_during_the_removal_is_written_again() {
    let mut wanted = Wanted::new(10);
    wanted.watched(&user("7"), id(1));
    wanted.take_changes(10);
    wanted.unwatched(&user("7"), id(1));
    let removal = wanted.take_changes(10);
    wanted.watched(&user("7"), id(1));
    wanted.written(&removal[0]);
    assert_eq!(wanted.take_changes(10), [change(1, &["7"], &[])]);
}

#[test]
fn what_failed_is_written_as_it_is_wanted_by_then() {
    let mut wanted = Wanted::new(10);
    wanted.watched(&user("7"), id(1));
    let adding = wanted.take_changes(10);
    wanted.unwatched(&user("7"), id(1));
    wanted.failed(&adding[0]);
    assert_eq!(wanted.take_changes(10), [change(1, &[], &["7"])]);
}

#[test]
fn renewal_goes_round_in_slices() {
    let mut wanted = Wanted::new(10);
    for at in 1..=5 {
        wanted.watched(&user("7"), id(at));
    }
    let slices: Vec<Vec<i64>> =
        (0..4).map(|_| wanted.take_renewal(2).iter().map(|change| change.id.get()).collect()).collect();
    assert_eq!(slices, [vec![1, 2], vec![3, 4], vec![5], vec![1, 2]]);
}

#[test]
fn pairs_are_bounded_and_numbers_of_users_are_given_again() {
    let mut wanted = Wanted::new(2);
    assert!(wanted.watched(&user("a"), id(1)) && wanted.watched(&user("b"), id(1)));
    assert!(!wanted.watched(&user("c"), id(1)));
    assert!(wanted.watched(&user("a"), id(1)), "a further session of a known pair");
    wanted.none_wanted();
    for change in wanted.take_changes(10) {
        wanted.written(&change);
    }
    assert!(wanted.watched(&user("c"), id(1)) && wanted.watched(&user("d"), id(1)));
    assert_eq!(wanted.users.by_number.len(), 2);
}

/// What is asked of the wanted state: sessions come and go, batches are written or fail.
#[derive(Clone, Debug)]
enum Event {
    Watched(u8, i64),
    Unwatched(u8, i64),
    Write(bool),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        (0..4_u8, 0..3_i64).prop_map(|(user, id)| Event::Watched(user, id)),
        (0..4_u8, 0..3_i64).prop_map(|(user, id)| Event::Unwatched(user, id)),
        any::<bool>().prop_map(Event::Write),
    ];
    prop::collection::vec(event, 0..60)
}

proptest! {
    /// Whatever happened and failed: once a write succeeds, Redis holds exactly the pairs that have a session.
    #[test]
    fn redis_ends_with_what_is_wanted(events in events()) {
        let mut wanted = Wanted::new(1_000);
        let mut sessions: BTreeMap<(String, i64), u32> = BTreeMap::new();
        let mut redis: BTreeSet<(String, i64)> = BTreeSet::new();
        let mut write = |wanted: &mut Wanted, ok: bool| {
            for change in wanted.take_changes(1_000) {
                if !ok {
                    wanted.failed(&change);
                    continue;
                }
                for user in &change.add {
                    redis.insert((user.to_string(), change.id.get()));
                }
                for user in &change.remove {
                    redis.remove(&(user.to_string(), change.id.get()));
                }
                wanted.written(&change);
            }
            redis.clone()
        };
        for event in events {
            match event {
                Event::Watched(name, at) => {
                    *sessions.entry((name.to_string(), at)).or_default() += 1;
                    wanted.watched(&user(&name.to_string()), id(at));
                }
                Event::Unwatched(name, at) => {
                    // A session ends only if it began.
                    if let Some(n) = sessions.get_mut(&(name.to_string(), at)).filter(|n| **n > 0) {
                        *n -= 1;
                        wanted.unwatched(&user(&name.to_string()), id(at));
                    }
                }
                Event::Write(ok) => {
                    write(&mut wanted, ok);
                }
            }
        }
        let redis = write(&mut wanted, true);
        let expected: BTreeSet<_> = sessions.into_iter().filter(|(_, n)| *n > 0).map(|(pair, _)| pair).collect();
        prop_assert_eq!(wanted.n_pairs(), expected.len());
        prop_assert_eq!(redis, expected);
    }
}
