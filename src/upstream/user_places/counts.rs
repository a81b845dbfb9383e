//! How many sessions each user has on this replica, and what of it Redis is still to be asked or told.
//!
//! A user is in question while somebody waits, when the count has changed since it was told, and when its turn of
//! the renewal comes. A question that failed is asked again with the renewal; of a user who is gone by then, what
//! Redis knows ends with the lease.

use crate::session::user_places::Verdict;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Tells one who waits.
pub type Asker = oneshot::Sender<Verdict>;

/// The counts of one replica.
#[derive(Default)]
pub struct Counts {
    users: BTreeMap<Arc<str>, User>,
    in_question: BTreeSet<Arc<str>>,
    /// Where the renewal stands.
    renewed: Option<Arc<str>>,
    /// Redis can't be asked.
    alone: bool,
    /// This replica's sessions don't count any more.
    left: bool,
}

#[derive(Default)]
struct User {
    n_held: usize,
    /// Of those who wait, so many are in the question that is under way.
    n_asking: usize,
    waiting: Vec<Asker>,
}

/// What comes of asking for a place.
pub enum Asked {
    /// The user has all its places on this replica.
    Full,
    /// A place, by the count of this replica alone.
    Alone,
    /// Redis is to be asked.
    Later(oneshot::Receiver<Verdict>),
}

/// What Redis is to be asked for one user.
pub struct Question {
    /// The user.
    pub user: Arc<str>,
    /// Sessions that it has here.
    pub n_held: usize,
    /// Places that it asks for.
    pub n_asked: usize,
}

impl Counts {
    /// Asks for a place.
    pub fn ask(&mut self, user: &Arc<str>, limit: usize) -> Asked {
        let known = self.users.get(user);
        if known.is_some_and(|known| known.n_held + known.waiting.len() >= limit) {
            return Asked::Full;
        }
        let known = self.users.entry(Arc::clone(user)).or_default();
        self.in_question.insert(Arc::clone(user));
        if self.alone || self.left {
            known.n_held += 1;
            return Asked::Alone;
        }
        let (asker, asked) = oneshot::channel();
        known.waiting.push(asker);
        Asked::Later(asked)
    }

    /// Gives a place back.
    pub fn give_back(&mut self, user: &Arc<str>) {
        if let Some(known) = self.users.get_mut(user) {
            known.n_held = known.n_held.saturating_sub(1);
            self.in_question.insert(Arc::clone(user));
        }
    }

    /// Whether Redis is to be asked or told something.
    pub fn has_questions(&self) -> bool {
        !self.in_question.is_empty()
    }

    /// The next questions, at most so many. Each is to be answered.
    pub fn questions(&mut self, most: usize) -> Vec<Question> {
        let mut questions = Vec::new();
        while questions.len() < most
            && let Some(user) = self.in_question.pop_first()
        {
            if let Some(known) = self.users.get_mut(&user) {
                known.n_asking = known.waiting.len();
                let (n_held, n_asked) = if self.left { (0, 0) } else { (known.n_held, known.n_asking) };
                questions.push(Question { user, n_held, n_asked });
            }
        }
        questions
    }

    /// A question is answered: `granted` places, or it failed and `limit` counts for this replica alone. Gives
    /// who is to be told, and how many of them, from the first on, have a place.
    pub fn answered(
        &mut self,
        question: &Question,
        granted: Option<usize>,
        limit: usize,
    ) -> (usize, Vec<Asker>) {
        let Some(known) = self.users.get_mut(&question.user) else { return (0, Vec::new()) };
        // Who was on the way when this replica left is let in: others count it where it goes next.
        let granted = granted.filter(|_| !self.left);
        let told: Vec<_> = known.waiting.drain(..std::mem::take(&mut known.n_asking)).collect();
        let left = if limit == 0 { usize::MAX } else { limit.saturating_sub(known.n_held) };
        let n = granted.unwrap_or(left).min(told.len());
        known.n_held += n;
        // A session that ended meanwhile has put the user in question again.
        if known.n_held == 0 && known.waiting.is_empty() && !self.in_question.contains(&question.user) {
            self.users.remove(&question.user);
        }
        (n, told)
    }

    /// Puts a slice of `n` of all users in question. Gives whether there are any.
    pub fn renew_slice(&mut self, n: usize) -> bool {
        let most = self.users.len().div_ceil(n);
        let from = self.renewed.take();
        let from = from.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let slice: Vec<_> = self
            .users
            .range::<Arc<str>, _>((from, Bound::Unbounded))
            .take(most)
            .map(|(user, _)| Arc::clone(user))
            .collect();
        self.renewed = if slice.len() < most { None } else { slice.last().cloned() };
        self.in_question.extend(slice);
        self.has_questions()
    }

    /// Redis can't be asked, or can again. Gives whether that is news.
    pub fn alone(&mut self, alone: bool) -> bool {
        std::mem::replace(&mut self.alone, alone) != alone
    }

    /// No session counts any more.
    pub fn leave(&mut self) {
        self.left = true;
        self.in_question.extend(self.users.keys().cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> Arc<str> {
        name.into()
    }

    fn ask(counts: &mut Counts, name: &str, limit: usize) -> Option<oneshot::Receiver<Verdict>> {
        match counts.ask(&user(name), limit) {
            Asked::Later(verdict) => Some(verdict),
            Asked::Full | Asked::Alone => None,
        }
    }

    /// Answers the one question there is. Gives what it asked and how many were let in and refused.
    fn answer(counts: &mut Counts, granted: Option<usize>, limit: usize) -> (usize, usize, usize, usize) {
        let [question] = &counts.questions(10)[..] else { panic!("one question") };
        let (n, told) = counts.answered(question, granted, limit);
        (question.n_held, question.n_asked, n, told.len() - n)
    }

    #[test]
    fn who_waits_is_asked_for_together_and_answered_once() {
        let mut counts = Counts::default();
        let _waiting: Vec<_> = (0..3).map(|_| ask(&mut counts, "7", 3).expect("room")).collect();
        assert!(matches!(counts.ask(&user("7"), 3), Asked::Full), "those who wait count");
        assert_eq!(answer(&mut counts, Some(2), 3), (0, 3, 2, 1));
        assert!(!counts.has_questions());
        let _another = ask(&mut counts, "7", 3).expect("two are held");
        assert_eq!(answer(&mut counts, Some(0), 3), (2, 1, 0, 1));
    }

    #[test]
    fn who_comes_while_a_question_is_under_way_waits_for_the_next() {
        let mut counts = Counts::default();
        let _first = ask(&mut counts, "7", 5).expect("room");
        let question = counts.questions(10).remove(0);
        let _second = ask(&mut counts, "7", 5).expect("room");
        let (n, told) = counts.answered(&question, Some(1), 5);
        assert_eq!((n, told.len()), (1, 1));
        assert_eq!(answer(&mut counts, Some(1), 5), (1, 1, 1, 0));
    }

    #[test]
    fn an_end_is_told_and_then_forgotten() {
        let mut counts = Counts::default();
        let _first = ask(&mut counts, "7", 5).expect("room");
        let question = counts.questions(10).remove(0);
        counts.answered(&question, Some(1), 5);
        // It ends while the renewal is under way: Redis holds 1 and must learn of 0.
        assert!(counts.renew_slice(1));
        let question = counts.questions(10).remove(0);
        counts.give_back(&user("7"));
        counts.answered(&question, Some(0), 5);
        assert_eq!(answer(&mut counts, Some(0), 5), (0, 0, 0, 0));
        assert!(counts.users.is_empty() && !counts.renew_slice(1));
    }

    #[test]
    fn without_an_answer_the_limit_holds_here() {
        let mut counts = Counts::default();
        let _waiting: Vec<_> = (0..2).map(|_| ask(&mut counts, "7", 2).expect("room")).collect();
        assert_eq!(answer(&mut counts, None, 1), (0, 2, 1, 1));
        assert!(counts.alone(true) && !counts.alone(true));
        assert!(matches!(counts.ask(&user("7"), 1), Asked::Full));
        assert!(matches!(counts.ask(&user("7"), 2), Asked::Alone));
        assert_eq!(answer(&mut counts, Some(0), 2), (2, 0, 0, 0));
        assert!(counts.alone(false));
        // Of who ended unheard nothing stays here; Redis forgets with the lease.
        counts.give_back(&user("7"));
        counts.give_back(&user("7"));
        assert_eq!(answer(&mut counts, None, 2), (0, 0, 0, 0));
        assert!(counts.users.is_empty());
    }

    #[test]
    fn a_renewal_takes_every_user_in_turn() {
        let mut counts = Counts::default();
        for n in 0..10 {
            let _waiting = ask(&mut counts, &n.to_string(), 5);
        }
        for question in counts.questions(10) {
            counts.answered(&question, Some(1), 5);
        }
        let mut renewed = Vec::new();
        for _ in 0..4 {
            assert!(counts.renew_slice(4));
            for question in counts.questions(10) {
                counts.answered(&question, Some(0), 5);
                renewed.push(question.user.to_string());
            }
        }
        assert_eq!(renewed.len(), 10);
        renewed.sort();
        renewed.dedup();
        assert_eq!(renewed.len(), 10);
    }

    #[test]
    fn who_leaves_counts_no_more_and_lets_in_who_is_on_the_way() {
        let mut counts = Counts::default();
        let _first = ask(&mut counts, "7", 5).expect("room");
        let question = counts.questions(10).remove(0);
        counts.answered(&question, Some(1), 5);
        let _second = ask(&mut counts, "7", 5).expect("room");
        counts.leave();
        assert_eq!(answer(&mut counts, Some(0), 5), (0, 0, 1, 0));
        assert!(matches!(counts.ask(&user("7"), 5), Asked::Alone));
        assert_eq!(answer(&mut counts, Some(0), 5), (0, 0, 0, 0));
    }
}
