//! The outbox against a naive model: a queue that keeps whole quotes.

use super::*;
use proptest::prelude::*;

const SUBS: u16 = 6;

#[derive(Clone, Debug)]
enum Step {
    Quote(u16),
    Held(u16),
    Release(u16),
    Status(u16),
    Control(usize),
    Unsubscribe(u16),
    /// The kernel takes so many bytes of what is offered.
    Write(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..SUBS).prop_map(Step::Quote),
        2 => (0..SUBS).prop_map(Step::Held),
        2 => (0..SUBS).prop_map(Step::Release),
        1 => (0..SUBS).prop_map(Step::Status),
        1 => (1usize..5).prop_map(Step::Control),
        1 => (0..SUBS).prop_map(Step::Unsubscribe),
        4 => (0usize..80).prop_map(Step::Write),
    ];
    proptest::collection::vec(step, 1..200)
}

/// One frame: which subscription, which version, and a body that tells both.
fn frame(sub: u16, version: u32) -> Vec<u8> {
    let mut frame = vec![b'<', sub as u8];
    frame.extend_from_slice(&version.to_be_bytes());
    frame.extend(std::iter::repeat_n(b'.', usize::from(sub) + 3));
    frame.push(b'>');
    frame
}

#[derive(Default)]
struct Model {
    /// Pending quotes in order: the place is that of the first unsent one, the version the newest.
    queue: Vec<(u16, u32)>,
    held: std::collections::HashSet<u16>,
    newest: [u32; SUBS as usize],
    offered: usize,
    conflated: usize,
    delivered: usize,
    dropped: usize,
}

proptest! {
    #[test]
    fn agrees_with_a_naive_queue(steps in steps()) {
        let mut outbox = Outbox::default();
        let mut model = Model::default();
        let mut wire: Vec<u8> = Vec::new();
        (0..SUBS).for_each(|sub| outbox.open(sub));

        for (now, step) in (0u32..).zip(steps) {
            match step {
                Step::Held(sub) => {
                    model.newest[usize::from(sub)] += 1;
                    model.offered += 1;
                    let version = model.newest[usize::from(sub)];
                    let place = model.queue.iter_mut().find(|(s, _)| *s == sub);
                    let replaced = place.is_some() || model.held.contains(&sub);
                    prop_assert_eq!(outbox.hold_quote(sub), replaced);
                    model.conflated += usize::from(replaced);
                    match place {
                        Some(entry) => entry.1 = version,
                        None => { model.held.insert(sub); }
                    }
                }
                Step::Release(sub) => {
                    let was_held = model.held.remove(&sub);
                    prop_assert_eq!(outbox.release(sub, now), was_held);
                    if was_held {
                        model.queue.push((sub, model.newest[usize::from(sub)]));
                    }
                }
                // A lane marks no quote of a held subscription; it holds that too.
                Step::Quote(sub) if model.held.contains(&sub) => {}
                Step::Quote(sub) => {
                    model.newest[usize::from(sub)] += 1;
                    model.offered += 1;
                    let version = model.newest[usize::from(sub)];
                    let conflated = outbox.mark_quote(sub, false, now);
                    let place = model.queue.iter_mut().find(|(s, _)| *s == sub);
                    prop_assert_eq!(conflated, place.is_some());
                    match place {
                        Some(entry) => { entry.1 = version; model.conflated += 1; }
                        None => model.queue.push((sub, version)),
                    }
                }
                Step::Status(sub) => outbox.mark_status(sub, now),
                Step::Control(n) => outbox.push_control(&vec![b'c'; n]),
                Step::Unsubscribe(sub) => {
                    let was_due = outbox.close(sub);
                    let held = model.held.remove(&sub);
                    prop_assert_eq!(was_due, held || model.queue.iter().any(|(s, _)| *s == sub));
                    model.queue.retain(|(s, _)| *s != sub);
                    model.dropped += usize::from(was_due);
                }
                Step::Write(n) => {
                    let (mut bytes, mut marks) = (Vec::new(), Vec::new());
                    outbox.gather(60, &mut bytes, &mut marks, |sub, due, out| {
                        if due.quote {
                            out.extend(frame(sub, model.newest[usize::from(sub)]));
                        } else {
                            out.push(b's');
                        }
                    });
                    let n = n.min(bytes.len());
                    wire.extend_from_slice(&bytes[..n]);
                    let written = outbox.written(n, &bytes, &marks, now);
                    model.delivered += usize::from(written.torn_done);
                    model.delivered += marks[..written.n_done].iter().filter(|m| m.quote).count();
                    for mark in marks[..written.n_begun].iter().filter(|m| m.quote) {
                        let entry = model.queue.iter().position(|(s, _)| *s == mark.sub);
                        model.queue.remove(entry.expect("only what is due is written"));
                    }
                }
            }
            let pending = outbox.n_quotes();
            prop_assert_eq!(model.offered, model.delivered + model.conflated + model.dropped + pending);
        }

        for sub in 0..SUBS {
            outbox.release(sub, 0);
        }
        // Everything goes out in the end, and the wire holds whole frames with rising versions.
        while !outbox.is_empty() {
            let (mut bytes, mut marks) = (Vec::new(), Vec::new());
            outbox.gather(60, &mut bytes, &mut marks, |sub, due, out| {
                if due.quote { out.extend(frame(sub, model.newest[usize::from(sub)])) } else { out.push(b's') }
            });
            wire.extend_from_slice(&bytes);
            outbox.written(bytes.len(), &bytes, &marks, 0);
        }
        let mut last = [0; SUBS as usize];
        let mut rest = &wire[..];
        while let Some((&first, after)) = rest.split_first() {
            if first != b'<' {
                prop_assert!(first == b'c' || first == b's', "a frame is torn apart");
                rest = after;
                continue;
            }
            let sub = u16::from(rest[1]);
            let version = u32::from_be_bytes(rest[2..6].try_into().expect("four bytes"));
            let expected = frame(sub, version);
            prop_assert!(rest.starts_with(&expected), "a frame is torn apart");
            prop_assert!(version > last[usize::from(sub)], "a version went back");
            last[usize::from(sub)] = version;
            rest = &rest[expected.len()..];
        }
        for sub in 0..SUBS {
            let closed = last[usize::from(sub)] < model.newest[usize::from(sub)];
            prop_assert!(!closed || model.dropped > 0, "the newest version never came");
        }
    }
}

proptest! {
    /// However writes end, in the middle of a frame or between two.
    #[test]
    fn the_age_is_that_of_the_oldest_quote_that_is_not_out(
        steps in proptest::collection::vec((0..2 * SUBS, 0usize..80), 1..200),
    ) {
        let mut outbox = Outbox::default();
        (0..SUBS).for_each(|sub| outbox.open(sub));
        let mut due: Vec<(u16, u32)> = Vec::new();
        let mut torn = None;
        for (now, (sub, n)) in (0u32..).step_by(10).zip(steps) {
            if sub < SUBS {
                outbox.mark_quote(sub, false, now);
                if due.iter().all(|(s, _)| *s != sub) {
                    due.push((sub, now));
                }
            } else {
                let (mut bytes, mut marks) = (Vec::new(), Vec::new());
                outbox.gather(60, &mut bytes, &mut marks, |sub, _, out| out.extend(frame(sub, 0)));
                let (had, n) = (torn.is_some(), n.min(bytes.len()));
                let written = outbox.written(n, &bytes, &marks, now);
                let begun: Vec<_> = due.drain(..written.n_begun).collect();
                if written.n_begun > written.n_done {
                    torn = begun.last().map(|(_, since)| *since);
                } else if written.torn_done || !had {
                    torn = None;
                }
            }
            let oldest = due.iter().map(|(_, since)| *since).chain(torn).min();
            prop_assert_eq!(outbox.age_ms(now), oldest.map_or(0, |since| now - since));
        }
    }
}

#[test]
fn a_conflated_quote_keeps_its_place_and_its_age() {
    let mut outbox = Outbox::default();
    outbox.open(0);
    outbox.open(1);
    outbox.mark_quote(0, false, 10);
    outbox.mark_quote(1, false, 20);
    assert!(outbox.mark_quote(0, false, 30));
    assert_eq!(outbox.age_ms(40), 30);
    let (mut bytes, mut marks) = (Vec::new(), Vec::new());
    outbox.gather(100, &mut bytes, &mut marks, |sub, _, out| out.push(sub as u8));
    assert_eq!(bytes, [0, 1]);
}

#[test]
fn a_torn_frame_has_an_age_too() {
    let mut outbox = Outbox::default();
    outbox.open(0);
    outbox.mark_quote(0, false, 0);
    let (mut bytes, mut marks) = (Vec::new(), Vec::new());
    outbox.gather(100, &mut bytes, &mut marks, |_, _, out| out.extend_from_slice(b"frame"));
    let written = outbox.written(2, &bytes, &marks, 5);
    assert_eq!((written.n_done, written.n_begun, written.empty), (0, 1, false));
    assert_eq!((outbox.n_quotes(), outbox.age_ms(25)), (1, 25), "it has been due since 0");
}
