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
        wanted.watched(&user("7"), id(1));
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
    wanted.failed(&adding[0], false);
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
fn numbers_of_users_are_given_again() {
    let mut wanted = Wanted::new(10);
    for name in ["a", "b"] {
        wanted.watched(&user(name), id(1));
    }
    wanted.none_wanted();
    for change in wanted.take_changes(10) {
        wanted.written(&change);
    }
    for name in ["c", "d"] {
        wanted.watched(&user(name), id(1));
    }
    assert_eq!(wanted.users.by_number.len(), 2);
}

/// While Redis is away users come and go. What is wanted is bounded by the sessions; what is to be removed is
/// bounded here, and costs nobody who watches anything.
#[test]
fn removals_that_wait_are_bounded_and_never_cost_a_watch() {
    let mut wanted = Wanted::new(2);
    for name in ["a", "b", "c"] {
        wanted.watched(&user(name), id(1));
    }
    wanted.take_changes(10);
    assert!(wanted.unwatched(&user("a"), id(1)) && wanted.unwatched(&user("b"), id(1)));
    assert!(!wanted.unwatched(&user("c"), id(1)), "a third has no room");
    assert!((wanted.n_pairs(), wanted.is_certain()) == (2, false));
    // Two tabs of one user, of which the first goes: the other still holds it, full or not.
    wanted.watched(&user("d"), id(1));
    wanted.watched(&user("d"), id(1));
    assert!(wanted.unwatched(&user("d"), id(1)));
    assert_eq!(wanted.take_changes(10), [change(1, &["d"], &["a", "b"])]);
    wanted.watched(&user("a"), id(1));
    assert!(wanted.unwatched(&user("d"), id(1)), "who comes back leaves room");
}

#[test]
fn what_may_still_be_executed_is_written_once_more_when_it_has_settled() {
    let mut wanted = Wanted::new(10);
    wanted.watched(&user("7"), id(1));
    let adding = wanted.take_changes(10);
    wanted.failed(&adding[0], true);
    wanted.unwatched(&user("7"), id(1));
    let removal = [change(1, &[], &["7"])];
    assert_eq!(wanted.take_changes(10), removal);
    wanted.written(&removal[0]);
    assert!((wanted.n_pairs(), wanted.has_changes(), wanted.is_certain()) == (1, false, false));
    wanted.settle();
    assert_eq!(wanted.take_changes(10), [], "it may have been written a moment ago");
    wanted.settle();
    assert_eq!(wanted.take_changes(10), removal);
    wanted.written(&removal[0]);
    assert!((wanted.n_pairs(), wanted.is_certain()) == (0, true));
}

/// What becomes of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Written,
    Refused,
    /// Nobody answers, and nothing was executed.
    Lost,
    /// Nobody answers, and it is executed later.
    Late,
}

/// What is asked of the wanted state: sessions come and go, batches are written or fail, time passes.
#[derive(Clone, Debug)]
enum Event {
    Watched(u8, i64),
    Unwatched(u8, i64),
    Write(Fate),
    Settle,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        (0..4_u8, 0..3_i64).prop_map(|(user, id)| Event::Watched(user, id)),
        (0..4_u8, 0..3_i64).prop_map(|(user, id)| Event::Unwatched(user, id)),
        prop::sample::select(vec![Fate::Written, Fate::Refused, Fate::Lost, Fate::Late])
            .prop_map(Event::Write),
        Just(Event::Settle),
    ];
    prop::collection::vec(event, 0..60)
}

/// The sets in Redis, and what is still on its way to them.
#[derive(Default)]
struct Server {
    members: BTreeSet<(String, i64)>,
    late: Vec<Change>,
}

impl Server {
    fn execute(&mut self, change: &Change) {
        let pair = |user: &Arc<str>| (user.to_string(), change.id.get());
        self.members.extend(change.add.iter().map(pair));
        change.remove.iter().for_each(|user| {
            self.members.remove(&pair(user));
        });
    }

    fn write(&mut self, wanted: &mut Wanted, fate: Fate) {
        for change in wanted.take_changes(1_000) {
            match fate {
                Fate::Written => {
                    self.execute(&change);
                    wanted.written(&change);
                }
                Fate::Refused => wanted.failed(&change, false),
                Fate::Lost => wanted.failed(&change, true),
                Fate::Late => {
                    wanted.failed(&change, true);
                    self.late.push(change);
                }
            }
        }
    }

    /// By then everything that was on its way has come.
    fn settle(&mut self, wanted: &mut Wanted) {
        for change in std::mem::take(&mut self.late) {
            self.execute(&change);
        }
        wanted.settle();
    }
}

proptest! {
    /// Whatever happened, failed or came late: once writes succeed, Redis holds exactly the pairs that have a
    /// session.
    #[test]
    fn redis_ends_with_what_is_wanted(events in events()) {
        let mut wanted = Wanted::new(1_000);
        let mut sessions: BTreeMap<(String, i64), u32> = BTreeMap::new();
        let mut server = Server::default();
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
                Event::Write(fate) => server.write(&mut wanted, fate),
                Event::Settle => server.settle(&mut wanted),
            }
        }
        server.write(&mut wanted, Fate::Written);
        for _ in 0..2 {
            server.settle(&mut wanted);
            server.write(&mut wanted, Fate::Written);
        }
        let expected: BTreeSet<_> = sessions.into_iter().filter(|(_, n)| *n > 0).map(|(pair, _)| pair).collect();
        prop_assert!(wanted.is_certain());
        prop_assert_eq!(wanted.n_pairs(), expected.len());
        prop_assert_eq!(server.members, expected);
        prop_assert_eq!(wanted.n_leaving, 0);
    }
}
