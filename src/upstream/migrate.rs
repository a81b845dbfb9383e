//! The functions that live in Redis: loading them, and seeing whether those that are loaded fit this
//! program.
//!
//! Invariants:
//! - Every primary has every library; applying twice changes nothing.
//! - A library that was applied is never replaced by an older program: what is newer is left alone.
//! - What counts is the code that a primary has, since a primary that joined later has none; the record
//!   in its schema hash says which programs have been there.
//!
//! Not here: what the functions do (`migrations/`), calling them (`publish`).

use super::commands::failure::{Failure, Kind};
use super::commands::{Answer, Commands};
use super::slots::{NodeAddr, SLOTS, SlotTable, slot};
use redis::{Cmd, FromRedisValue, Value, cmd};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt;

/// A numbered library.
#[derive(Debug)]
pub struct Migration {
    /// Its name in the schema hash: four digits, an underscore, a word. The digits give the order.
    pub name: &'static str,
    /// Name of the library, as its first line says.
    library: &'static str,
    code: &'static str,
}

/// Every migration that this program knows, in their order.
pub const MIGRATIONS: [Migration; 1] = [Migration {
    name: "0001_publish",
    library: "tickbridge_publish_1",
    code: include_str!("../../migrations/0001_publish.lua"),
}];

/// The record of applied migrations. In a cluster this is its name on the primary that owns its slot;
/// others have it under a name with a hash tag of their own.
const SCHEMA: &str = "tickbridge:schema";

impl Migration {
    /// The SHA-256 of the code, in hexadecimal.
    pub fn checksum(&self) -> String {
        Sha256::digest(self.code).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// How the functions of one primary stand to this program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Everything is there.
    Current,
    /// These are missing or have other code.
    Behind(Vec<&'static str>),
    /// A newer program has been there, and left this.
    Ahead(String),
}

impl Standing {
    /// Label values of [`Standing::label_of`].
    pub const LABELS: [&'static str; 4] = ["current", "behind", "ahead", "unsupported"];

    /// The label of how a primary stands; `None` is one without functions.
    pub fn label_of(standing: Option<&Self>) -> &'static str {
        let [current, behind, ahead, unsupported] = Self::LABELS;
        match standing {
            Some(Self::Current) => current,
            Some(Self::Behind(_)) => behind,
            Some(Self::Ahead(_)) => ahead,
            None => unsupported,
        }
    }
}

/// What a primary has.
struct Found {
    schema_key: String,
    recorded: BTreeMap<String, String>,
    /// Code of our libraries, by name.
    libraries: BTreeMap<String, String>,
}

/// What was done to one primary.
#[derive(Debug)]
pub struct Applied {
    /// The primary.
    pub node: NodeAddr,
    /// The migrations that were applied; none if it was current.
    pub names: Vec<&'static str>,
}

/// Why a primary can't be migrated.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// A newer program has been there.
    #[error("{node} has the migration {name}, which this program doesn't know")]
    Ahead {
        /// The primary.
        node: NodeAddr,
        /// What it has.
        name: String,
    },
    /// The server is too old.
    #[error("{0} has no functions, which came with Redis 7.0")]
    Unsupported(NodeAddr),
    /// A command failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Applies what is missing on `node`.
///
/// # Errors
/// The node is ahead or too old, or a command failed. Applying again continues.
pub async fn apply(commands: &Commands, node: &NodeAddr) -> Result<Applied, MigrateError> {
    let found = look(commands, node).await?;
    let found = found.ok_or_else(|| MigrateError::Unsupported(node.clone()))?;
    let missing = match standing(&found) {
        Standing::Current => Vec::new(),
        Standing::Behind(names) => names,
        Standing::Ahead(name) => return Err(MigrateError::Ahead { node: node.clone(), name }),
    };
    for migration in MIGRATIONS.iter().filter(|migration| missing.contains(&migration.name)) {
        if found.libraries.get(migration.library).is_none_or(|code| code != migration.code) {
            one(commands, node, cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(migration.code)).await?;
        }
        let record = [migration.name, &migration.checksum()];
        one(commands, node, cmd("HSET").arg(&found.schema_key).arg(&record)).await?;
    }
    Ok(Applied { node: node.clone(), names: missing })
}

/// How every primary stands; `None` for a server that has no functions, which came with Redis 7.0.
///
/// # Errors
/// A primary can't be asked.
pub async fn check(commands: &Commands) -> Result<Vec<(NodeAddr, Option<Standing>)>, Failure> {
    let mut standings = Vec::new();
    for node in commands.topology().all_primaries() {
        let found = look(commands, &node).await?;
        standings.push((node, found.as_ref().map(standing)));
    }
    Ok(standings)
}

/// What `node` has; `None` if it knows no functions.
async fn look(commands: &Commands, node: &NodeAddr) -> Result<Option<Found>, Failure> {
    let schema_key = schema_key(&commands.topology().table(), node)
        .ok_or_else(|| Failure::new(Kind::Unowned, node, "the node owns no slot"))?;
    let recorded = one(commands, node, cmd("HGETALL").arg(&schema_key)).await?;
    let list = cmd("FUNCTION").arg("LIST").arg("LIBRARYNAME").arg("tickbridge_*").arg("WITHCODE").to_owned();
    let libraries = match commands.run_on(node, vec![list]).await.remove(0) {
        Ok(libraries) => libraries,
        Err(failure) if failure.kind == Kind::Other && failure.text.contains("unknown command") => {
            return Ok(None);
        }
        Err(failure) => return Err(failure),
    };
    let unreadable = |error: redis::ParsingError| Failure::new(Kind::Other, node, error.to_string());
    Ok(Some(Found {
        schema_key,
        recorded: BTreeMap::from_redis_value(recorded).map_err(unreadable)?,
        libraries: by_name(libraries).map_err(unreadable)?,
    }))
}

/// Names and code in an answer to `FUNCTION LIST`.
fn by_name(libraries: Value) -> Result<BTreeMap<String, String>, redis::ParsingError> {
    let libraries = Vec::<BTreeMap<String, Value>>::from_redis_value(libraries)?;
    let mut by_name = BTreeMap::new();
    for mut library in libraries {
        let mut text = |field: &str| String::from_redis_value(library.remove(field).unwrap_or(Value::Nil));
        by_name.insert(text("library_name")?, text("library_code")?);
    }
    Ok(by_name)
}

fn standing(found: &Found) -> Standing {
    let known = |name: &String| MIGRATIONS.iter().any(|migration| migration.name == name);
    if let Some(name) = found.recorded.keys().rev().find(|name| !known(name)) {
        return Standing::Ahead(name.clone());
    }
    let missing = MIGRATIONS.iter().filter(|migration| {
        let loaded = found.libraries.get(migration.library).is_some_and(|code| code == migration.code);
        let recorded = found.recorded.get(migration.name) == Some(&migration.checksum());
        !(loaded && recorded)
    });
    let missing: Vec<_> = missing.map(|migration| migration.name).collect();
    if missing.is_empty() { Standing::Current } else { Standing::Behind(missing) }
}

/// The name of the schema hash on `node`: a key that lies in one of its slots.
fn schema_key(table: &SlotTable, node: &NodeAddr) -> Option<String> {
    let tagged = (0..SLOTS).map(|tag| format!("{SCHEMA}:{{{tag}}}"));
    let mut names = std::iter::once(SCHEMA.to_owned()).chain(tagged);
    names.find(|name| table.owner(slot(name.as_bytes())) == Some(node))
}

async fn one(commands: &Commands, node: &NodeAddr, command: &Cmd) -> Answer {
    commands.run_on(node, vec![command.clone()]).await.remove(0)
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.names[..] {
            [] => write!(f, "{}: up to date", self.node),
            names => write!(f, "{}: applied {}", self.node, names.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_without_gaps_and_named_like_their_libraries() {
        for (at, migration) in MIGRATIONS.iter().enumerate() {
            assert!(migration.name.starts_with(&format!("{:04}_", at + 1)), "{}", migration.name);
            let first_line = format!("#!lua name={}\n", migration.library);
            assert!(migration.code.starts_with(&first_line), "{}", migration.name);
        }
    }

    #[test]
    fn each_primary_has_a_schema_hash_of_its_own() {
        let nodes = ["a:1", "b:1", "c:1"].map(|node| NodeAddr::parse(node).expect("valid"));
        let mut table = SlotTable::empty();
        for number in 0..SLOTS {
            table.set(number, &nodes[usize::from(number) * 3 / usize::from(SLOTS)]);
        }
        let keys: Vec<_> =
            nodes.iter().map(|node| schema_key(&table, node).expect("it owns slots")).collect();
        for (key, node) in keys.iter().zip(&nodes) {
            assert_eq!(table.owner_of(key.as_bytes()), Some(node));
        }
        assert!(keys.contains(&SCHEMA.to_owned()));
        let single = SlotTable::single(nodes[0].clone());
        assert_eq!(schema_key(&single, &nodes[0]).as_deref(), Some(SCHEMA));
        assert_eq!(schema_key(&single, &nodes[1]), None);
    }

    fn found(recorded: &[(&str, String)], libraries: &[(&str, &str)]) -> Found {
        Found {
            schema_key: SCHEMA.to_owned(),
            recorded: recorded.iter().map(|(name, sum)| ((*name).to_owned(), sum.clone())).collect(),
            libraries: libraries
                .iter()
                .map(|(name, code)| ((*name).to_owned(), (*code).to_owned()))
                .collect(),
        }
    }

    #[test]
    fn code_and_record_must_both_be_there() {
        let [first] = &MIGRATIONS;
        let record = (first.name, first.checksum());
        let library = (first.library, first.code);
        let behind = Standing::Behind(vec![first.name]);
        assert_eq!(standing(&found(std::slice::from_ref(&record), &[library])), Standing::Current);
        assert_eq!(standing(&found(&[], &[library])), behind);
        assert_eq!(standing(&found(std::slice::from_ref(&record), &[])), behind);
        assert_eq!(standing(&found(std::slice::from_ref(&record), &[(first.library, "old")])), behind);
        let newer = ("0002_more", String::new());
        assert_eq!(standing(&found(&[record, newer], &[library])), Standing::Ahead("0002_more".into()));
    }
}
