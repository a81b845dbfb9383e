//! Where a session stands with its timers and rights: a state machine over (event, now).
//!
//! Times here are on the sweep's clock (`session::sweep`), which stands still while the process does.
//!
//! Not here: sockets, topics, what is written (`lane`).

use super::Principal;
use crate::config;
use crate::config::live::LiveLimits;
use crate::protocol::close::CloseReason;
use crate::topic::Topic;
use std::sync::Arc;
use std::time::Duration;

/// What the sweep has to do for a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// Nothing.
    Nothing,
    /// Send a heartbeat.
    Heartbeat,
    /// End it.
    Close(CloseReason),
}

/// The timers that apply to every session.
#[derive(Clone, Debug)]
pub struct Timers {
    /// `None` where anonymous sessions are welcome.
    pub auth_timeout: Option<Duration>,
    /// See [`config::Session::heartbeat_interval`].
    pub heartbeat_interval: Duration,
    /// Silence after an unanswered ping that ends a session: the pong timeout, as often as may be missed.
    pub silence: Duration,
    /// See [`config::Session::slow_consumer_grace`].
    pub slow_consumer_grace: Duration,
    /// With the rate of a client's messages; see [`config::Session::max_inbound_per_second`].
    pub limits: Arc<LiveLimits>,
}

impl Timers {
    /// The timers as configured.
    pub fn new(config: &config::Config, limits: Arc<LiveLimits>) -> Self {
        let session = &config.session;
        Self {
            auth_timeout: (!config.auth.anonymous).then_some(config.auth.timeout),
            heartbeat_interval: session.heartbeat_interval,
            silence: session.pong_timeout * session.max_missed_pongs,
            slow_consumer_grace: session.slow_consumer_grace,
            limits,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Standing {
    principal: Option<Principal>,
    admitted_at: Duration,
    next_heartbeat: Duration,
    /// When the first ping was sent that nothing has followed yet.
    unanswered_since: Option<Duration>,
    /// Whether a client of this transport can answer at all.
    answers: bool,
    /// Messages that the client may send at once, and when that was worked out.
    allowance: f64,
    allowance_at: Duration,
}

/// A second's worth of messages may come at once and another second's worth right behind it.
const BURST_SECONDS: f64 = 2.0;

impl Standing {
    /// A session admitted at `now`. `spread` in `0.0..1.0` places its first heartbeat within an
    /// interval, so that sessions that came together don't get theirs together.
    pub fn new(
        principal: Option<Principal>,
        answers: bool,
        timers: &Timers,
        now: Duration,
        spread: f64,
    ) -> Self {
        Self {
            principal,
            admitted_at: now,
            next_heartbeat: now + timers.heartbeat_interval.mul_f64(0.5 + spread / 2.0),
            unanswered_since: None,
            answers,
            allowance: timers.limits.max_inbound_per_second() * BURST_SECONDS,
            allowance_at: now,
        }
    }

    /// Who the session acts for.
    pub fn principal(&self) -> Option<&Principal> {
        self.principal.as_ref()
    }

    /// Whether the session may have the topic's quotes. Guests may where there are any.
    pub fn may_see(&self, topic: Topic) -> bool {
        self.principal.as_ref().is_none_or(|principal| principal.permissions.allow(topic))
    }

    /// Takes a verified token. A session never changes its user.
    ///
    /// # Errors
    /// The reason to close when the token belongs to another user.
    pub fn authenticated(&mut self, principal: Principal) -> Result<(), CloseReason> {
        if self.principal.as_ref().is_some_and(|p| p.user_id != principal.user_id) {
            return Err(CloseReason::AuthError);
        }
        self.principal = Some(principal);
        Ok(())
    }

    /// Bytes came from the client, whatever they are: it is alive.
    pub fn heard(&mut self) {
        self.unanswered_since = None;
    }

    /// Whether the client may send one more message at `now`.
    pub fn may_send(&mut self, timers: &Timers, now: Duration) -> bool {
        let rate = timers.limits.max_inbound_per_second();
        let earned = now.saturating_sub(self.allowance_at).as_secs_f64() * rate;
        self.allowance = (self.allowance + earned).min(rate * BURST_SECONDS);
        self.allowance_at = now;
        let may = self.allowance >= 1.0;
        if may {
            self.allowance -= 1.0;
        }
        may
    }

    /// What is due at `now`, for a session whose oldest unsent quote has waited for `backlog_age`.
    pub fn sweep(&mut self, timers: &Timers, now: Duration, unix_secs: i64, backlog_age: Duration) -> Due {
        if let Some(principal) = &self.principal {
            if principal.expires_at.is_some_and(|at| at <= unix_secs) {
                return Due::Close(CloseReason::TokenExpired);
            }
        } else if timers.auth_timeout.is_some_and(|limit| now.saturating_sub(self.admitted_at) >= limit) {
            return Due::Close(CloseReason::AuthTimeout);
        }
        if backlog_age >= timers.slow_consumer_grace {
            return Due::Close(CloseReason::SlowConsumer);
        }
        if self.unanswered_since.is_some_and(|since| now.saturating_sub(since) >= timers.silence) {
            return Due::Close(CloseReason::PongTimeout);
        }
        if now < self.next_heartbeat {
            return Due::Nothing;
        }
        self.next_heartbeat = now + timers.heartbeat_interval;
        if self.answers {
            self.unanswered_since.get_or_insert(now);
        }
        Due::Heartbeat
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::permission::Permissions;

    const SECOND: Duration = Duration::from_secs(1);

    fn timers() -> Timers {
        Timers {
            auth_timeout: Some(3 * SECOND),
            heartbeat_interval: 2 * SECOND,
            silence: 6 * SECOND,
            slow_consumer_grace: 3 * SECOND,
            limits: LiveLimits::new(&config::Config::default()),
        }
    }

    fn user(expires_at: Option<i64>) -> Principal {
        Principal { user_id: "7".into(), expires_at, permissions: Permissions::default() }
    }

    #[test]
    fn an_unauthenticated_session_ends_at_the_auth_timeout() {
        let mut standing = Standing::new(None, true, &timers(), Duration::ZERO, 0.0);
        assert_ne!(
            standing.sweep(&timers(), 2 * SECOND, 0, Duration::ZERO),
            Due::Close(CloseReason::AuthTimeout)
        );
        assert_eq!(
            standing.sweep(&timers(), 3 * SECOND, 0, Duration::ZERO),
            Due::Close(CloseReason::AuthTimeout)
        );
    }

    #[test]
    fn silence_counts_from_the_first_unanswered_ping() {
        let mut standing = Standing::new(Some(user(None)), true, &timers(), Duration::ZERO, 1.0);
        assert_eq!(standing.sweep(&timers(), 2 * SECOND, 0, Duration::ZERO), Due::Heartbeat);
        assert_eq!(standing.sweep(&timers(), 7 * SECOND, 0, Duration::ZERO), Due::Heartbeat);
        assert_eq!(
            standing.sweep(&timers(), 8 * SECOND, 0, Duration::ZERO),
            Due::Close(CloseReason::PongTimeout)
        );
    }

    #[test]
    fn anything_heard_proves_the_client_alive() {
        let mut standing = Standing::new(Some(user(None)), true, &timers(), Duration::ZERO, 1.0);
        for t in 1..100 {
            standing.heard();
            assert!(
                !matches!(standing.sweep(&timers(), t * SECOND, 0, Duration::ZERO), Due::Close(_)),
                "{t}"
            );
        }
    }

    #[test]
    fn a_transport_that_cannot_answer_is_not_asked_to() {
        let mut standing = Standing::new(Some(user(None)), false, &timers(), Duration::ZERO, 1.0);
        for t in 1..100 {
            assert!(
                !matches!(standing.sweep(&timers(), t * SECOND, 0, Duration::ZERO), Due::Close(_)),
                "{t}"
            );
        }
    }

    #[test]
    fn a_token_ends_the_session_and_a_fresh_one_extends_it() {
        let mut standing = Standing::new(Some(user(Some(10))), true, &timers(), Duration::ZERO, 0.0);
        assert_eq!(standing.sweep(&timers(), SECOND / 2, 9, Duration::ZERO), Due::Nothing);
        standing.authenticated(user(Some(20))).expect("the same user");
        assert_eq!(standing.sweep(&timers(), SECOND / 2, 19, Duration::ZERO), Due::Nothing);
        let expired = standing.sweep(&timers(), SECOND / 2, 20, Duration::ZERO);
        assert_eq!(expired, Due::Close(CloseReason::TokenExpired));
    }

    #[test]
    fn a_session_never_changes_its_user() {
        let mut standing = Standing::new(Some(user(None)), true, &timers(), Duration::ZERO, 0.0);
        let other = Principal { user_id: "8".into(), expires_at: None, permissions: Permissions::default() };
        assert_eq!(standing.authenticated(other), Err(CloseReason::AuthError));
    }

    #[test]
    fn the_inbound_rate_allows_two_seconds_worth_at_once() {
        let mut standing = Standing::new(None, true, &timers(), Duration::ZERO, 0.0);
        assert_eq!((0..100).filter(|_| standing.may_send(&timers(), Duration::ZERO)).count(), 40);
        assert_eq!((0..100).filter(|_| standing.may_send(&timers(), SECOND)).count(), 20);
    }

    #[test]
    fn a_backlog_older_than_the_grace_ends_the_session() {
        let mut standing = Standing::new(Some(user(None)), true, &timers(), Duration::ZERO, 0.0);
        assert_eq!(standing.sweep(&timers(), SECOND / 2, 0, 2 * SECOND), Due::Nothing);
        let slow = standing.sweep(&timers(), SECOND / 2, 0, 3 * SECOND);
        assert_eq!(slow, Due::Close(CloseReason::SlowConsumer));
    }
}
