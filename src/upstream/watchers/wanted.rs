//! Who watches what, as wanted: counts per instrument and user, and what of it is still to be written.
//!
//! Invariants:
//! - The wanted state is what counts, not the sequence that led to it: a pair is written as it is wanted
//!   when it is taken, however often it changed before.
//! - A pair stays known until its removal is written.
//! - Eight bytes per pair: users are numbered, and pairs are kept in one sorted vector per instrument.

use crate::instrument::InstrumentId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    n_pairs: usize,
    max_pairs: usize,
    /// Where the renewal stands.
    renewed: Option<InstrumentId>,
}

#[derive(Clone, Copy, Debug)]
struct Pair {
    user: UserAt,
    n_sessions: u32,
}

/// The highest bit of `n_sessions`: the pair is to be written. A user has fewer sessions.
const DIRTY: u32 = 1 << 31;

impl Pair {
    const fn is_dirty(self) -> bool {
        self.n_sessions & DIRTY != 0
    }

    const fn is_wanted(self) -> bool {
        self.n_sessions & !DIRTY != 0
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

impl Wanted {
    /// Nobody watches anything; at most `max_pairs` pairs of instrument and user are kept.
    pub fn new(max_pairs: usize) -> Self {
        Self {
            users: Users::default(),
            by_instrument: BTreeMap::new(),
            dirty: BTreeSet::new(),
            n_pairs: 0,
            max_pairs,
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

    /// A session of `user` watches `id`. Gives whether there was room for it.
    pub fn watched(&mut self, user: &Arc<str>, id: InstrumentId) -> bool {
        let at = self.users.at(user);
        let known = at.and_then(|at| find(self.by_instrument.get(&id)?, at).ok());
        if known.is_none() && self.n_pairs >= self.max_pairs {
            return false;
        }
        let at = at.unwrap_or_else(|| self.users.add(user));
        let pairs = self.by_instrument.entry(id).or_default();
        match find(pairs, at) {
            Ok(found) => {
                let pair = &mut pairs[found];
                if !pair.is_wanted() {
                    pair.n_sessions |= DIRTY;
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
        true
    }

    /// A session of `user` doesn't watch `id` any more.
    pub fn unwatched(&mut self, user: &Arc<str>, id: InstrumentId) {
        let Some(at) = self.users.at(user) else { return };
        let Some(pairs) = self.by_instrument.get_mut(&id) else { return };
        let Ok(found) = find(pairs, at) else { return };
        let pair = &mut pairs[found];
        if pair.is_wanted() {
            pair.n_sessions -= 1;
            if !pair.is_wanted() {
                pair.n_sessions |= DIRTY;
                self.dirty.insert(id);
            }
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
            changes.push(change);
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

    /// A change could not be written and is to be written again, as it is wanted by then.
    pub fn failed(&mut self, change: &Change) {
        let Some(pairs) = self.by_instrument.get_mut(&change.id) else { return };
        for user in change.add.iter().chain(&change.remove) {
            if let Some(found) = self.users.at(user).and_then(|at| find(pairs, at).ok()) {
                pairs[found].n_sessions |= DIRTY;
                self.dirty.insert(change.id);
            }
        }
    }

    /// A change was written: removed pairs that nobody wants again are forgotten.
    pub fn written(&mut self, change: &Change) {
        let Some(pairs) = self.by_instrument.get_mut(&change.id) else { return };
        for user in &change.remove {
            let Some(at) = self.users.at(user) else { continue };
            if let Ok(found) = find(pairs, at)
                && pairs[found].n_sessions == 0
            {
                pairs.remove(found);
                self.users.let_go(at);
                self.n_pairs -= 1;
            }
        }
        if pairs.is_empty() {
            self.by_instrument.remove(&change.id);
        } else if pairs.len() < pairs.capacity() / 4 {
            pairs.shrink_to(pairs.len() * 2);
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
            pairs.iter_mut().for_each(|pair| pair.n_sessions = DIRTY);
            self.dirty.insert(id);
        }
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
