//! Who watches what, as wanted: counts per instrument and user, and what of it is still to be written.
//!
//! Invariants:
//! - The wanted state is what counts, not the sequence that led to it: a pair is written as it is wanted
//!   when it is taken, however often it changed before.
//! - A pair stays known until its removal is written, and what is wanted is never refused: sessions and
//!   their topics bound it. Removals that can't be written have a bound of their own.
//! - A write without an answer may be executed late, after its repetition and after the opposite. What it
//!   was about is in doubt, and is written once more when it can't come any more.
//! - Eight bytes per pair: users are numbered, and pairs are kept in one sorted vector per instrument.

use crate::instrument::InstrumentId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;
use std::ops::Bound;
use std::sync::Arc;

type UserAt = u32;

/// The wanted state of one replica.
#[derive(Debug)]
pub struct Wanted {
    users: Users,
    by_instrument: BTreeMap<InstrumentId, Vec<Pair>>,
    /// Instruments with a pair that is to be written.
    dirty: BTreeSet<InstrumentId>,
    /// Instruments with a pair in doubt that has been written since, and those before the last
    /// [`Wanted::settle`].
    doubts: BTreeSet<InstrumentId>,
    doubts_before: BTreeSet<InstrumentId>,
    n_pairs: usize,
    /// Pairs that nobody wants, and how many of them are remembered.
    n_leaving: usize,
    max_leaving: usize,
    /// A removal was forgotten, so that Redis may hold more than is known.
    forgot: bool,
    /// Where the renewal stands.
    renewed: Option<InstrumentId>,
}

#[derive(Clone, Copy, Debug)]
struct Pair {
    user: UserAt,
    n_sessions: u32,
}

/// The highest bits of `n_sessions`: the pair is to be written; a write of it may still be executed. A user
/// has fewer sessions.
const DIRTY: u32 = 1 << 31;
const DOUBT: u32 = 1 << 30;

impl Pair {
    const fn is_dirty(self) -> bool {
        self.n_sessions & DIRTY != 0
    }

    const fn is_in_doubt(self) -> bool {
        self.n_sessions & DOUBT != 0
    }

    const fn is_wanted(self) -> bool {
        self.n_sessions & !(DIRTY | DOUBT) != 0
    }
}

/// What is to be written for one instrument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The instrument.
    pub id: InstrumentId,
    /// Users who watch it.
    pub add: Vec<Arc<str>>,
    /// Users who don't any more.
    pub remove: Vec<Arc<str>>,
}

impl Change {
    fn users(&self) -> impl Iterator<Item = &Arc<str>> {
        self.add.iter().chain(&self.remove)
    }

    fn is_empty(&self) -> bool {
        self.add.is_empty() && self.remove.is_empty()
    }
}

impl Wanted {
    /// Nobody watches anything; at most `max_leaving` removals are remembered.
    pub fn new(max_leaving: usize) -> Self {
        Self {
            users: Users::default(),
            by_instrument: BTreeMap::new(),
            dirty: BTreeSet::new(),
            doubts: BTreeSet::new(),
            doubts_before: BTreeSet::new(),
            n_pairs: 0,
            n_leaving: 0,
            max_leaving,
            forgot: false,
            renewed: None,
        }
    }

    /// Pairs that are known.
    pub fn n_pairs(&self) -> usize {
        self.n_pairs
    }

    /// Whether something is to be written.
    pub fn has_changes(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Whether Redis is known to hold nothing but what is known here.
    pub fn is_certain(&self) -> bool {
        !self.forgot && self.doubts.is_empty() && self.doubts_before.is_empty()
    }

    /// A session of `user` watches `id`.
    pub fn watched(&mut self, user: &Arc<str>, id: InstrumentId) {
        let at = self.users.at(user).unwrap_or_else(|| self.users.add(user));
        let pairs = self.by_instrument.entry(id).or_default();
        match find(pairs, at) {
            Ok(found) => {
                let pair = &mut pairs[found];
                if !pair.is_wanted() {
                    pair.n_sessions |= DIRTY;
                    self.n_leaving -= 1;
                    self.dirty.insert(id);
                }
                pair.n_sessions += 1;
            }
            Err(place) => {
                pairs.insert(place, Pair { user: at, n_sessions: 1 | DIRTY });
                self.users.hold(at);
                self.n_pairs += 1;
                self.dirty.insert(id);
            }
        }
    }

    /// A session of `user` doesn't watch `id` any more. Gives whether the removal could be remembered.
    pub fn unwatched(&mut self, user: &Arc<str>, id: InstrumentId) -> bool {
        let Some(at) = self.users.at(user) else { return true };
        let Some(pairs) = self.by_instrument.get_mut(&id) else { return true };
        let Ok(found) = find(pairs, at) else { return true };
        let pair = &mut pairs[found];
        if !pair.is_wanted() {
            return true;
        }
        pair.n_sessions -= 1;
        if !pair.is_wanted() {
            pair.n_sessions |= DIRTY;
            self.n_leaving += 1;
            if self.n_leaving > self.max_leaving {
                self.forgot = true;
                self.forget(id, at);
                return false;
            }
            self.dirty.insert(id);
        }
        true
    }

    /// Forgets a pair that nobody wants.
    fn forget(&mut self, id: InstrumentId, user: UserAt) {
        let Some(pairs) = self.by_instrument.get_mut(&id) else { return };
        let Ok(found) = find(pairs, user) else { return };
        pairs.remove(found);
        self.users.let_go(user);
        self.n_pairs -= 1;
        self.n_leaving -= 1;
        if pairs.is_empty() {
            self.by_instrument.remove(&id);
        } else if pairs.len() < pairs.capacity() / 4 {
            pairs.shrink_to(pairs.len() * 2);
        }
    }

    /// Takes what is to be written for at most `most` instruments. It counts as written unless
    /// [`Wanted::failed`] is told.
    pub fn take_changes(&mut self, most: usize) -> Vec<Change> {
        let mut changes = Vec::new();
        while let Some(id) = self.dirty.pop_first() {
            let pairs = self.by_instrument.get_mut(&id).map(Vec::as_mut_slice).unwrap_or_default();
            let mut change = Change { id, add: Vec::new(), remove: Vec::new() };
            for pair in pairs.iter_mut().filter(|pair| pair.is_dirty()) {
                pair.n_sessions &= !DIRTY;
                let side = if pair.is_wanted() { &mut change.add } else { &mut change.remove };
                side.push(self.users.name(pair.user));
            }
            if !change.is_empty() {
                changes.push(change);
            }
            if changes.len() >= most {
                break;
            }
        }
        changes
    }

    /// What the next `most` instruments should hold, in turn over all of them.
    pub fn take_renewal(&mut self, most: usize) -> Vec<Change> {
        let from = self.renewed.map_or(Bound::Unbounded, Bound::Excluded);
        let slice = self.by_instrument.range((from, Bound::Unbounded)).take(most);
        let slice: Vec<_> = slice.map(|(&id, pairs)| (id, pairs.as_slice())).collect();
        self.renewed = if slice.len() < most { None } else { slice.last().map(|(id, _)| *id) };
        let wanted =
            |pairs: &[Pair]| pairs.iter().filter(|pair| pair.is_wanted()).copied().collect::<Vec<_>>();
        let renewals = slice.into_iter().map(|(id, pairs)| Change {
            id,
            add: wanted(pairs).into_iter().map(|pair| self.users.name(pair.user)).collect(),
            remove: Vec::new(),
        });
        renewals.filter(|change| !change.add.is_empty()).collect()
    }

    /// Instruments with at least one pair.
    pub fn n_instruments(&self) -> usize {
        self.by_instrument.len()
    }

    /// A change could not be written and is to be written again, as it is wanted by then. `in_doubt`: it
    /// may be executed all the same, at once or later.
    pub fn failed(&mut self, change: &Change, in_doubt: bool) {
        let Some(pairs) = self.by_instrument.get_mut(&change.id) else { return };
        for user in change.users() {
            if let Some(found) = self.users.at(user).and_then(|at| find(pairs, at).ok()) {
                pairs[found].n_sessions |= if in_doubt { DIRTY | DOUBT } else { DIRTY };
                self.dirty.insert(change.id);
            }
        }
    }

    /// A change was written: removed pairs that nobody wants again are forgotten, unless they are in doubt.
    pub fn written(&mut self, change: &Change) {
        for user in change.users() {
            let Some(at) = self.users.at(user) else { continue };
            let Some(pairs) = self.by_instrument.get(&change.id) else { return };
            let Ok(found) = find(pairs, at) else { continue };
            let pair = pairs[found];
            if pair.is_in_doubt() {
                self.doubts.insert(change.id);
            } else if pair.n_sessions == 0 {
                self.forget(change.id, at);
            }
        }
    }

    /// To be called at times so far apart that what was sent before the last call is executed by this one,
    /// or never. What was in doubt then, and has been written since, is to be written once more.
    pub fn settle(&mut self) {
        let due = mem::replace(&mut self.doubts_before, mem::take(&mut self.doubts));
        for id in due {
            let pairs = self.by_instrument.get_mut(&id).map(Vec::as_mut_slice).unwrap_or_default();
            // One that is dirty stays in doubt: it may be so since a moment ago.
            for pair in pairs.iter_mut().filter(|pair| pair.is_in_doubt() && !pair.is_dirty()) {
                pair.n_sessions = pair.n_sessions & !DOUBT | DIRTY;
                self.dirty.insert(id);
            }
        }
    }

    /// Everything that is wanted is to be written again: it may have been lost.
    pub fn all_dirty(&mut self) {
        for (&id, pairs) in &mut self.by_instrument {
            pairs.iter_mut().for_each(|pair| pair.n_sessions |= DIRTY);
            self.dirty.insert(id);
        }
    }

    /// Nobody watches anything any more; what was written is to be removed.
    pub fn none_wanted(&mut self) {
        for (&id, pairs) in &mut self.by_instrument {
            pairs.iter_mut().for_each(|pair| pair.n_sessions = pair.n_sessions & DOUBT | DIRTY);
            self.dirty.insert(id);
        }
        self.n_leaving = self.n_pairs;
    }
}

fn find(pairs: &[Pair], user: UserAt) -> Result<usize, usize> {
    pairs.binary_search_by_key(&user, |pair| pair.user)
}

/// Users by number. A number is given again when no pair holds it any more.
#[derive(Default, Debug)]
struct Users {
    by_name: HashMap<Arc<str>, UserAt>,
    /// Name, and how many pairs hold it.
    by_number: Vec<(Arc<str>, u32)>,
    free: Vec<UserAt>,
}

impl Users {
    fn at(&self, user: &Arc<str>) -> Option<UserAt> {
        self.by_name.get(user).copied()
    }

    fn add(&mut self, user: &Arc<str>) -> UserAt {
        let at = self.free.pop().unwrap_or(self.by_number.len() as UserAt);
        let entry = (Arc::clone(user), 0);
        match self.by_number.get_mut(at as usize) {
            Some(slot) => *slot = entry,
            None => self.by_number.push(entry),
        }
        self.by_name.insert(Arc::clone(user), at);
        at
    }

    fn name(&self, at: UserAt) -> Arc<str> {
        Arc::clone(&self.by_number[at as usize].0)
    }

    fn hold(&mut self, at: UserAt) {
        self.by_number[at as usize].1 += 1;
    }

    fn let_go(&mut self, at: UserAt) {
        let (name, n_pairs) = &mut self.by_number[at as usize];
        *n_pairs -= 1;
        if *n_pairs == 0 {
            self.by_name.remove(name);
            self.free.push(at);
        }
    }
}

#[cfg(test)]
mod tests;
