//! The callers as they are now: those with a token of the configuration, and those whose JSON Web Tokens were seen.
//!
//! The engine answers durable and standing turns for them (`turnflow_engine::principal`), and lists of answers withhold
//! what was made with groups that they have no more. A caller with a JSON Web Token is as its newest token says, until
//! that expires.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde_json::{Map, Value as Json};
use turnflow_engine::principal::{Present, Principals, still_has};

use crate::app::now;
use crate::auth::VARIABLE;
use crate::config::ServeConfig;
use crate::jwt::PREFIX;

/// Maximum number of callers with JSON Web Tokens to remember.
const MOST: usize = 10_000;

/// What is known of the callers of a server.
#[derive(Debug, Default)]
pub struct Callers {
    /// The fields of those who have a token of the configuration or of the environment, by name.
    fixed: HashMap<String, Map<String, Json>>,
    /// Whether JSON Web Tokens are accepted.
    has_jwt: bool,
    /// The callers with these, by name.
    seen: Mutex<HashMap<Arc<str>, Seen>>,
    version: AtomicU64,
}

/// The newest token of a caller.
#[derive(Debug)]
struct Seen {
    fields: Map<String, Json>,
    /// When it was issued, or else when it ends, in seconds since the Unix epoch.
    issued: f64,
    /// When it is no longer valid.
    until: u64,
}

impl Callers {
    /// The callers of a configuration and of the environment.
    pub fn new(config: &ServeConfig) -> Arc<Self> {
        Self::of(config, |name| std::env::var(name).ok())
    }

    /// The same; `variable` reads a variable.
    pub(crate) fn of(config: &ServeConfig, variable: impl Fn(&str) -> Option<String>) -> Arc<Self> {
        let mut fixed: HashMap<String, Map<String, Json>> = HashMap::new();
        for token in &config.tokens {
            fixed.insert(token.name.clone(), named(&token.name, &token.extra));
        }
        for entry in variable(VARIABLE).iter().flat_map(|all| all.split(',')) {
            if let Some((name, _)) = entry.split_once('=') {
                fixed.insert(name.trim().to_owned(), named(name.trim(), &Map::new()));
            }
        }
        Arc::new(Self { fixed, has_jwt: config.jwt.is_some(), ..Self::default() })
    }

    /// Notes a caller with a verified JSON Web Token. Of two tokens, the one that was issued later counts.
    pub(crate) fn see(&self, name: &Arc<str>, fields: &Map<String, Json>, issued: f64, until: u64) {
        let mut seen = self.seen.lock();
        if let Some(known) = seen.get_mut(name) {
            let is_valid = now() <= known.until;
            if is_valid && issued < known.issued {
                return;
            }
            let is_new = !is_valid || known.fields != *fields;
            *known = Seen { fields: fields.clone(), issued, until };
            if is_new {
                self.version.fetch_add(1, Ordering::AcqRel);
            }
            return;
        }
        if seen.len() >= MOST {
            let at = now();
            seen.retain(|_, seen| seen.until >= at);
        }
        if seen.len() >= MOST
            && let Some(first) = seen.iter().min_by_key(|(_, seen)| seen.until).map(|(name, _)| name.clone())
        {
            seen.remove(&first);
        }
        seen.insert(name.clone(), Seen { fields: fields.clone(), issued, until });
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the caller with these fields may still have all of them, as far as that is known.
    pub(crate) fn may_have(&self, then: &Map<String, Json>) -> bool {
        self.now(then).fields(then).is_none_or(|now| still_has(Some(&now), then))
    }
}

impl Principals for Callers {
    fn now(&self, then: &Map<String, Json>) -> Present {
        // Without tokens, anyone may call, and nobody is known.
        let is_open = self.fixed.is_empty() && !self.has_jwt;
        let Some(name) = then.get("name").and_then(Json::as_str).filter(|_| !is_open) else { return Present::Unknown };
        if let Some(fields) = self.fixed.get(name) {
            return Present::Is(fields.clone());
        }
        if !name.starts_with(PREFIX) || !self.has_jwt {
            return Present::Gone;
        }
        match self.seen.lock().get(name).filter(|seen| now() <= seen.until) {
            Some(seen) => Present::Is(seen.fields.clone()),
            None => Present::Unknown,
        }
    }

    fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}

/// The principal of a token: its further fields and its name.
pub(crate) fn named(name: &str, extra: &Map<String, Json>) -> Map<String, Json> {
    let mut extra = extra.clone();
    extra.insert("name".to_owned(), name.into());
    extra
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(name: &str, groups: &[&str]) -> Map<String, Json> {
        json!({ "name": name, "groups": groups }).as_object().cloned().unwrap()
    }

    #[test]
    fn callers_are_known_as_they_are_now() {
        let config = r#"(
            tokens: [(name: "ann", token: Env("A"), extra: {"groups": ["staff"]})],
            jwt: (keys: File("keys.json"), audience: ["turnflow"]),
        )"#;
        let config = ServeConfig::parse(config, "s.ron").unwrap();
        let callers = Callers::of(&config, |name| (name == VARIABLE).then(|| "bob=secret".to_owned()));
        assert_eq!(callers.now(&fields("ann", &["board"])), Present::Is(fields("ann", &["staff"])));
        assert!(matches!(callers.now(&fields("bob", &["board"])), Present::Is(now) if !now.contains_key("groups")));
        assert_eq!(callers.now(&fields("eve", &["board"])), Present::Gone);
        // A JSON Web Token counts when it is seen, and a newer one more than an older one.
        let eve: Arc<str> = "jwt/eve".into();
        let of = |groups| fields("jwt/eve", groups);
        assert_eq!(callers.now(&of(&["board"])), Present::Unknown);
        let (far, before) = (now() + 1000, callers.version());
        callers.see(&eve, &of(&["board"]), 10.0, far);
        callers.see(&eve, &of(&["board"]), 11.0, far);
        assert_eq!((callers.version(), callers.now(&of(&[]))), (before + 1, Present::Is(of(&["board"]))));
        callers.see(&eve, &of(&["staff"]), 20.0, far);
        callers.see(&eve, &of(&["board"]), 11.0, far);
        assert_eq!((callers.version(), callers.now(&of(&[]))), (before + 2, Present::Is(of(&["staff"]))));
        assert!(callers.may_have(&of(&["staff"])) && !callers.may_have(&of(&["board"])));
        // After its end, nothing is known.
        callers.see(&eve, &of(&["staff"]), 30.0, now() - 10);
        assert_eq!(callers.now(&of(&[])), Present::Unknown);
        callers.see(&eve, &of(&["staff"]), 5.0, far);
        assert_eq!((callers.version(), callers.now(&of(&[]))), (before + 3, Present::Is(of(&["staff"]))));
        let open = Callers::of(&ServeConfig::default(), |_| None);
        assert_eq!(open.now(&fields("ann", &["board"])), Present::Unknown);
    }

    #[test]
    fn a_bounded_number_of_callers_is_remembered() {
        let callers = Callers { has_jwt: true, ..Callers::default() };
        for number in 0..MOST as u64 + 10 {
            callers.see(&format!("jwt/{number}").into(), &Map::new(), 0.0, now() + 1000 + number);
        }
        assert_eq!(callers.seen.lock().len(), MOST);
        assert!(!callers.seen.lock().contains_key("jwt/0"), "the one that ends first is forgotten");
    }
}
