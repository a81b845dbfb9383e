//! A bounded run of each fuzz target: the corpus, and some thousands of inputs made from it.
//!
//! The inputs are the same in every run, so that a failure is one of the code that changed and not of luck. What
//! fails is written to a file that `cargo fuzz run` takes; docs/testing.md tells how longer runs are made.

#[path = "../../fuzz/src/lib.rs"]
mod targets;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::path::Path;

/// Made from the corpus of one target. All of them together take a few seconds in a debug build.
const MADE: usize = 3_000;

/// Longest input that is made. A corpus entry is far shorter.
const LONGEST: usize = 4_096;

/// Numbers at which something may turn over.
const NUMBERS: [i64; 7] = [0, 1, -1, u16::MAX as i64, 1 << 53, i64::MIN, i64::MAX];

#[test]
fn client_frames_keep_to_what_is_asserted() {
    run("client_frames", targets::client_frames::check);
}

#[test]
fn client_messages_keep_to_what_is_asserted() {
    run("client_messages", targets::client_messages::check);
}

#[test]
fn payloads_keep_to_what_is_asserted() {
    run("payloads", targets::payloads::check);
}

#[test]
fn topics_keep_to_what_is_asserted() {
    run("topics", targets::topics::check);
}

#[test]
fn tokens_keep_to_what_is_asserted() {
    run("tokens", targets::tokens::check);
}

#[test]
fn cursors_keep_to_what_is_asserted() {
    run("cursors", targets::cursors::check);
}

#[test]
fn configurations_keep_to_what_is_asserted() {
    run("configuration", targets::configuration::check);
}

fn run(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    // The order of a folder is the file system's.
    paths.sort();
    let corpus: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(!corpus.is_empty(), "no corpus in {}", folder.display());
    for input in &corpus {
        judge(target, check, input);
    }
    let mut random = SmallRng::seed_from_u64(1);
    for _ in 0..MADE {
        judge(target, check, &made(&corpus, &mut random));
    }
}

fn judge(target: &str, check: fn(&[u8]), input: &[u8]) {
    if std::panic::catch_unwind(|| check(input)).is_err() {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{target}.input"));
        std::fs::write(&path, input).unwrap();
        panic!("repeat with: RUSTC_BOOTSTRAP=1 cargo fuzz run {target} {}", path.display());
    }
}

/// An entry of the corpus after a few changes.
fn made(corpus: &[Vec<u8>], random: &mut SmallRng) -> Vec<u8> {
    let mut input = corpus.choose(random).unwrap().clone();
    for _ in 0..random.random_range(1..=4) {
        let at = random.random_range(0..=input.len());
        let end = random.random_range(at..=input.len().min(at + 32));
        match random.random_range(0..6) {
            0 => input[at..end].iter_mut().take(1).for_each(|byte| *byte ^= 1 << random.random_range(0..8)),
            1 => input.insert(at, random.random()),
            2 => drop(input.drain(at..end)),
            3 => {
                let again = input[at..end].to_vec();
                input.splice(at..at, again);
            }
            4 => {
                let number = NUMBERS.choose(random).unwrap().to_string();
                input.splice(at..end, number.into_bytes());
            }
            _ => {
                let other = corpus.choose(random).unwrap();
                let from = random.random_range(0..=other.len());
                input.splice(at..end, other[from..].iter().copied());
            }
        }
    }
    input.truncate(LONGEST);
    input
}
