//! Keys that come from a key set on the network, and for how long they are good.
//!
//! A key is good while the set names it, and a grace longer: tokens that were signed shortly before a rotation
//! stay good, and so does everything while the set can't be had.
//!
//! Not here: how the set is fetched (`auth::jwks`).

use super::keys::Key;
use std::sync::Arc;
use std::time::Duration;

/// A key that left the set is good for this much longer. Two refreshes: one answer of a server that lags behind
/// must not end sessions, and a key that was withdrawn for a reason must not live on for hours.
pub const GRACE: Duration = Duration::from_secs(600);

/// Keys of one set at most. Real sets have two to five.
const MAX_KEYS: usize = 64;

/// The keys of the sets fetched so far. Cheap to clone.
#[derive(Clone, Default)]
pub struct Fetched(Arc<[Kept]>);

#[derive(Clone)]
struct Kept {
    /// The key as the set spells it, which is what makes it the same in the next set.
    spelling: Arc<str>,
    key: Arc<Key>,
    last_seen: Duration,
}

impl Fetched {
    /// The keys after `set`, an array of JSON Web Keys, was fetched at the monotonic time `now`. What isn't a
    /// public signing key that we know is left out.
    pub fn followed_by(&self, set: &[serde_json::Value], now: Duration) -> Self {
        let mut kept: Vec<Kept> = Vec::new();
        for value in set.iter().take(MAX_KEYS) {
            let spelling: Arc<str> = value.to_string().into();
            let known =
                self.0.iter().find(|kept| kept.spelling == spelling).map(|kept| Arc::clone(&kept.key));
            let key = known.or_else(|| Key::from_jwk(value).map(Arc::new));
            kept.extend(key.map(|key| Kept { spelling, key, last_seen: now }));
        }
        let n_present = kept.len();
        for old in self.0.iter().filter(|old| old.last_seen + GRACE > now) {
            if kept[..n_present].iter().all(|new| new.spelling != old.spelling) {
                kept.push(old.clone());
            }
        }
        // Present keys come first, so that a set that changes all the time can't push them out.
        kept.truncate(MAX_KEYS);
        Self(kept.into())
    }

    /// The keys, present ones first.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.0.iter().map(|kept| &*kept.key)
    }

    /// Whether no key was ever fetched.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many keys are good.
    pub fn n_keys(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn ed25519(kid: &str) -> Value {
        json!({ "kty": "OKP", "crv": "Ed25519", "kid": kid, "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" })
    }

    #[test]
    fn a_key_outlives_its_set_by_the_grace() {
        let second = Duration::from_secs(1);
        let fetched = Fetched::default().followed_by(&[ed25519("a"), ed25519("b")], second);
        assert_eq!(fetched.n_keys(), 2);
        let rotated = fetched.followed_by(&[ed25519("b"), ed25519("c")], second * 2);
        assert_eq!(rotated.n_keys(), 3);
        let later = rotated.followed_by(&[ed25519("b"), ed25519("c")], second + GRACE);
        assert_eq!(later.n_keys(), 2);
        // An empty set is an answer too.
        assert_eq!(later.followed_by(&[], GRACE * 3).n_keys(), 0);
    }

    #[test]
    fn a_set_is_bounded_and_its_present_keys_come_first() {
        let many: Vec<_> = (0..MAX_KEYS + 9).map(|n| ed25519(&n.to_string())).collect();
        let fetched = Fetched::default().followed_by(&many, Duration::ZERO);
        assert_eq!(fetched.n_keys(), MAX_KEYS);
        let others: Vec<_> = (0..MAX_KEYS).map(|n| ed25519(&format!("other {n}"))).collect();
        let changed = fetched.followed_by(&others, Duration::ZERO);
        assert_eq!(changed.n_keys(), MAX_KEYS);
        assert!(changed.keys().all(|key| !key.is_meant_by(Some("3"))));
    }

    #[test]
    fn what_is_no_public_signing_key_is_left_out() {
        let set = [
            json!(7),
            json!({}),
            json!({ "kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", "alg": "HS256" }),
            json!({ "kty": "OKP", "crv": "X25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" }),
            json!({ "kty": "OKP", "crv": "Ed25519", "x": "AAAA" }),
            json!({ "kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA" }),
            json!({ "kty": "RSA", "n": "AQAB", "e": "AQAB" }),
            json!({ "kty": "new", "kid": "x" }),
        ];
        assert!(Fetched::default().followed_by(&set, Duration::ZERO).is_empty());
        let mut encrypting = ed25519("a");
        encrypting["use"] = json!("enc");
        assert!(Fetched::default().followed_by(&[encrypting], Duration::ZERO).is_empty());
        let mut of_another_kind = ed25519("a");
        of_another_kind["alg"] = json!("RS256");
        assert!(Fetched::default().followed_by(&[of_another_kind], Duration::ZERO).is_empty());
    }
}
