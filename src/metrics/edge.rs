//! Metrics of the browser side, with the closed sets of their labels.
//!
//! Invariant: a label is a variant of an enum here. What a client sends (paths, origins, agents,
//! subjects) is mapped onto one of them or not told at all.
//!
//! Not here: which status a refusal is answered with (`edge::error`).

use super::Registry;
use crate::session::AuthFailure;
use metrics::{Counter, Gauge};
use std::marker::PhantomData;

/// A closed set of label values.
pub trait Label: Copy + 'static {
    /// Every value; the position of each is its discriminant.
    const ALL: &'static [Self];

    /// The value as it stands in the exposition.
    fn text(self) -> &'static str;

    /// The position in `ALL`.
    fn index(self) -> usize;
}

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident => $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl Label for $name {
            const ALL: &'static [Self] = &[$(Self::$variant,)+];

            fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

labels! {
    /// Why a connection or a request is refused.
    Refusal {
        /// More connections per second than `limits.accepts_per_second`.
        AcceptRate => "accept_rate",
        /// Too many connections that haven't become sessions.
        Unadmitted => "unadmitted",
        /// Descriptors are nearly used up.
        Descriptors => "descriptors",
        /// `limits.max_sessions` are open.
        Sessions => "sessions",
        /// `limits.max_sessions_per_ip` are open from the client's address.
        Address => "address",
        /// `limits.max_sessions_per_user` are open, over all replicas.
        User => "user",
        /// No lane takes the session.
        Lanes => "lanes",
        /// The process drains.
        Draining => "draining",
        /// Too many price reads at once.
        Busy => "busy",
        /// What the answer needs can't be reached.
        Unavailable => "unavailable",
        /// The origin isn't allowed.
        Origin => "origin",
        /// No token, and anonymous sessions aren't allowed.
        NoToken => "no_token",
        /// The token proves nothing.
        Token => "token",
        /// The ticket is unknown, used or expired.
        Ticket => "ticket",
        /// The token allows nothing of what is asked for.
        Forbidden => "forbidden",
        /// Not a WebSocket handshake.
        NotWebSocket => "not_websocket",
        /// Another WebSocket version than 13.
        WebSocketVersion => "websocket_version",
        /// A handshake that breaks the WebSocket protocol.
        Handshake => "handshake",
        /// No valid topic.
        NoTopic => "no_topic",
        /// A rate limit that is no number above 0.
        Rate => "rate",
        /// No valid instrument id.
        NoInstrument => "no_instrument",
        /// More instruments than one request may ask for.
        TooManyInstruments => "too_many_instruments",
        /// The key of `POST /publish` is missing or wrong, or none is configured.
        PublishKey => "publish_key",
        /// A body that holds no payloads.
        Payloads => "payloads",
        /// No id of a stream.
        StreamId => "stream_id",
        /// A place to begin in a stream that is none.
        StreamPlace => "stream_place",
        /// There is no such stream.
        UnknownStream => "unknown_stream",
        /// A body that holds no entries.
        Entries => "entries",
        /// A place in the list of sessions that is none.
        Page => "page",
        /// A request body where none belongs, or a larger one than any request needs.
        Body => "body",
        /// No such path.
        Path => "path",
        /// The path knows another method.
        Method => "method",
    }
}

labels! {
    /// Why `accept` failed.
    AcceptError {
        /// The process or the system is out of descriptors.
        Descriptors => "descriptors",
        /// The kernel is out of memory.
        Memory => "memory",
        /// The connection broke before it was accepted.
        Connection => "connection",
        /// Anything else.
        Other => "other",
    }
}

labels! {
    /// What a request is for.
    Route {
        /// `/market/ws`
        Ws => "ws",
        /// `/market/sse`
        Sse => "sse",
        /// `/market/prices`
        Prices => "prices",
        /// `/market/ticket`
        Ticket => "ticket",
        /// `/stream/sse`
        StreamSse => "stream_sse",
        /// `/ws/stream`
        StreamWs => "stream_ws",
        /// `/stream/demo`
        StreamDemo => "stream_demo",
        /// The live page.
        Page => "page",
        /// Everything on the admin listener.
        Ops => "ops",
        /// Paths that don't exist.
        Unknown => "unknown",
    }
}

labels! {
    /// The first digit of a status.
    StatusClass {
        /// Switching protocols.
        Informational => "1xx",
        /// Success.
        Success => "2xx",
        /// Redirection, not modified.
        Redirection => "3xx",
        /// The client's fault.
        Client => "4xx",
        /// The server's fault.
        Server => "5xx",
    }
}

labels! {
    /// How a fetch of the key set ended.
    KeyFetch {
        /// With keys.
        Ok => "ok",
        /// With an error.
        Failed => "failed",
    }
}

labels! {
    /// What became of a ticket.
    TicketUse {
        /// Given out.
        Issued => "issued",
        /// Taken for a session.
        Redeemed => "redeemed",
        /// Unknown, used or expired.
        Unknown => "unknown",
        /// The store couldn't be reached.
        Unavailable => "unavailable",
    }
}

/// One counter per label value.
pub struct Counters<L> {
    counters: Vec<Counter>,
    label: PhantomData<L>,
}

impl<L: Label> Counters<L> {
    fn register(registry: &Registry<'_>, name: &str, help: &'static str, label: &'static str) -> Self {
        let counters =
            L::ALL.iter().map(|value| registry.counter(name, help, &[(label, value.text())])).collect();
        Self { counters, label: PhantomData }
    }

    /// Counts one.
    pub fn count(&self, value: L) {
        self.counters[value.index()].increment(1);
    }
}

/// Counted by `edge`.
pub struct EdgeMetrics {
    /// Connections that the public listener accepted, refused ones included.
    pub connections_accepted: Counter,
    /// Connections in the HTTP stage, on the public listener.
    pub connections_unadmitted: Gauge,
    /// Failed `accept` calls.
    pub accept_errors: Counters<AcceptError>,
    /// Refused connections and requests.
    pub refusals: Counters<Refusal>,
    /// Tickets.
    pub tickets: Counters<TicketUse>,
    auth_failures: Vec<Counter>,
    key_fetches: Counters<KeyFetch>,
    keys_fetched: Gauge,
    requests: Vec<Counters<StatusClass>>,
}

impl EdgeMetrics {
    pub(super) fn register(registry: &Registry<'_>) -> Self {
        let requests = Route::ALL.iter().map(|route| {
            let counters = StatusClass::ALL.iter().map(|class| {
                let labels = [("route", route.text()), ("status", class.text())];
                registry.counter("http_requests_total", "HTTP requests answered.", &labels)
            });
            Counters { counters: counters.collect(), label: PhantomData }
        });
        let auth_failures = AuthFailure::ALL.iter().map(|failure| {
            let labels = [("reason", failure.text())];
            registry.counter("auth_failures_total", "Tokens that proved nothing.", &labels)
        });
        Self {
            connections_accepted: registry.counter(
                "connections_accepted_total",
                "Connections accepted on the public listener, refused ones included.",
                &[],
            ),
            connections_unadmitted: registry.gauge(
                "connections_unadmitted",
                "Connections to the public listener that speak HTTP and have not become sessions.",
                &[],
            ),
            accept_errors: Counters::register(
                registry,
                "accept_errors_total",
                "Failed accept calls.",
                "reason",
            ),
            refusals: Counters::register(
                registry,
                "refusals_total",
                "Connections and requests refused.",
                "reason",
            ),
            tickets: Counters::register(registry, "tickets_total", "Tickets by what became of them.", "use"),
            auth_failures: auth_failures.collect(),
            key_fetches: Counters::register(
                registry,
                "auth_key_fetches_total",
                "Fetches of the key set by outcome.",
                "outcome",
            ),
            keys_fetched: registry.gauge("auth_fetched_keys", "Keys from the key set that are good.", &[]),
            requests: requests.collect(),
        }
    }

    /// Counts a token that proved nothing.
    pub fn auth_failed(&self, failure: AuthFailure) {
        self.auth_failures[failure as usize].increment(1);
    }

    /// Counts a fetch of the key set, after which `n_keys` are good.
    pub fn keys_fetched(&self, n_keys: usize) {
        self.key_fetches.count(KeyFetch::Ok);
        self.keys_fetched.set(n_keys as f64);
    }

    /// Counts a fetch of the key set that failed.
    pub fn keys_not_fetched(&self) {
        self.key_fetches.count(KeyFetch::Failed);
    }

    /// Counts an answered request.
    pub fn answered(&self, route: Route, class: StatusClass) {
        self.requests[route.index()].count(class);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn every_series_stands_at_zero_from_the_start() {
        let text = Metrics::new("t").render();
        for failure in AuthFailure::ALL {
            assert!(text.contains(&format!("t_auth_failures_total{{reason=\"{}\"}} 0", failure.text())));
        }
        for refusal in Refusal::ALL {
            assert!(text.contains(&format!("t_refusals_total{{reason=\"{}\"}} 0", refusal.text())));
        }
        let n_requests = text.lines().filter(|l| l.starts_with("t_http_requests_total{")).count();
        assert_eq!(n_requests, Route::ALL.len() * StatusClass::ALL.len());
    }

    #[test]
    fn a_counter_belongs_to_its_label() {
        let metrics = Metrics::new("t");
        metrics.edge.refusals.count(Refusal::Method);
        metrics.edge.auth_failed(AuthFailure::Subject);
        metrics.edge.answered(Route::Prices, StatusClass::Client);
        let text = metrics.render();
        for line in [
            "t_refusals_total{reason=\"method\"} 1",
            "t_auth_failures_total{reason=\"subject\"} 1",
            "t_http_requests_total{route=\"prices\",status=\"4xx\"} 1",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
