//! The check of every message: validators per method and part, and the fault that a bad value has.
//!
//! A validator is compiled when its method is first used. Whether a value fits is jsonschema's word; where it does not
//! fit is found in `fault.rs`, which reads the tag first and then speaks of that one branch.

mod fault;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;

use jsonschema::Validator;
use serde_json::{Map, Value, json};

/// Which half of a method a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    Params,
    Result,
}

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Params => "params",
            Self::Result => "result",
        })
    }
}

/// What is wrong with a value: where, what was expected, and what was there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{method}{}{}: expected {expected}, got {got}", Spaced(part), At(pointer))]
pub struct Fault {
    /// The method, or what else was checked, such as `plugin.json`.
    pub method: String,
    /// Absent when the thing checked has no parts.
    pub part: Option<Part>,
    /// A JSON pointer into that part; empty for the whole.
    pub pointer: String,
    pub expected: String,
    /// Clipped.
    pub got: String,
}

struct Spaced<'a>(&'a Option<Part>);

impl fmt::Display for Spaced<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |part| write!(formatter, " {part}"))
    }
}

struct At<'a>(&'a str);

impl fmt::Display for At<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(formatter, " at {}", self.0) }
    }
}

/// Returns the validators of plugin protocol 5.
pub fn plugin() -> &'static Validators {
    static PLUGIN: OnceLock<Validators> = OnceLock::new();
    PLUGIN.get_or_init(|| Validators::new(bingo_plugin_sdk::schema::plugin()))
}

/// Returns the validators of RPC protocol 1.
pub fn rpc() -> &'static Validators {
    static RPC: OnceLock<Validators> = OnceLock::new();
    RPC.get_or_init(|| Validators::new(bingo_plugin_sdk::schema::rpc()))
}

/// The validators of one protocol.
pub struct Validators {
    document: Value,
    checks: HashMap<Subject, Check>,
}

/// What a validator is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Subject {
    Method(String, Part),
    Host(String, Part),
    Manifest,
}

/// A schema and its validator once it was needed.
struct Check {
    schema: Value,
    validator: OnceLock<Validator>,
}

impl Validators {
    fn new(document: Value) -> Self {
        let mut checks = HashMap::new();
        let mut add = |subject, schema: &Value| {
            checks.insert(subject, Check { schema: schema.clone(), validator: OnceLock::new() });
        };
        for table in ["methods", "notifications"] {
            for (name, row) in members(&document[table]) {
                add(Subject::Method(name.clone(), Part::Params), &row["params"]);
                if let Some(result) = row.get("result") {
                    add(Subject::Method(name.clone(), Part::Result), result);
                }
            }
        }
        for (name, row) in members(&document["hostService"]["methods"]) {
            add(Subject::Host(name.clone(), Part::Params), &row["params"]);
            add(Subject::Host(name.clone(), Part::Result), &row["result"]);
        }
        if let Some(manifest) = document.get("manifest") {
            add(Subject::Manifest, manifest);
        }
        Self { document, checks }
    }

    /// Checks one part of a method or notification. Missing params (null) count as `{}` where that fits.
    ///
    /// # Errors
    /// The fault, or one that says that there is no such method.
    pub fn check(&self, method: &str, part: Part, value: &Value) -> Result<(), Fault> {
        self.check_part(Subject::Method(method.to_owned(), part), method, part, value)
    }

    /// Checks one part of a method of the host's own service, `ask` or `notice`.
    ///
    /// # Errors
    /// The fault, or one that says that the service has no such method.
    pub fn check_host(&self, method: &str, part: Part, value: &Value) -> Result<(), Fault> {
        let name = format!("{} {method}", bingo_plugin_sdk::calls::HOST_SERVICE);
        self.check_part(Subject::Host(method.to_owned(), part), &name, part, value)
    }

    /// Checks the content of a `plugin.json`.
    ///
    /// # Errors
    /// The fault.
    pub fn check_manifest(&self, value: &Value) -> Result<(), Fault> {
        self.run(&Subject::Manifest, value).map_err(|found| found.into_fault("plugin.json", None))
    }

    fn check_part(&self, subject: Subject, name: &str, part: Part, value: &Value) -> Result<(), Fault> {
        if part == Part::Params && value.is_null() && self.run(&subject, value).is_err() {
            let empty = Value::Object(Map::new());
            return self.run(&subject, &empty).map_err(|found| found.into_fault(name, Some(part)));
        }
        self.run(&subject, value).map_err(|found| found.into_fault(name, Some(part)))
    }

    fn run(&self, subject: &Subject, value: &Value) -> Result<(), fault::Found> {
        let Some(check) = self.checks.get(subject) else { return Err(unknown(subject)) };
        let validator = check.validator.get_or_init(|| compile(&self.document, &check.schema));
        if validator.is_valid(value) {
            return Ok(());
        }
        let found = fault::find(&self.document, &check.schema, value);
        match (found, validator.validate(value)) {
            (Some(found), _) => Err(found),
            (None, Err(error)) => Err(fault::Found::foreign(&error, value)),
            (None, Ok(())) => Ok(()),
        }
    }
}

/// Checks a plugin's settings against the schema in its manifest. No settings (null) count as empty ones.
///
/// # Errors
/// The fault in words, or that the schema itself is none.
pub fn check_config(plugin: &str, schema: &Value, config: &Value) -> Result<(), String> {
    let validator = jsonschema::validator_for(schema)
        .map_err(|error| format!("`config` in its plugin.json is no JSON Schema: {error}"))?;
    let empty = Value::Object(Map::new());
    if validator.is_valid(config) || (config.is_null() && validator.is_valid(&empty)) {
        return Ok(());
    }
    let config = if config.is_null() { &empty } else { config };
    let found = fault::find(schema, schema, config).or_else(|| {
        let error = validator.validate(config).err()?;
        Some(fault::Found::foreign(&error, config))
    });
    let name = format!("the settings plugins.{plugin}");
    Err(found.map_or(format!("{name} do not fit"), |found| found.into_fault(&name, None).to_string()))
}

fn unknown(subject: &Subject) -> fault::Found {
    let (what, name) = match subject {
        Subject::Method(name, Part::Result) => ("a request of the protocol", name.as_str()),
        Subject::Method(name, Part::Params) => ("a method of the protocol", name.as_str()),
        Subject::Host(name, _) => ("a method of the host's service", name.as_str()),
        Subject::Manifest => ("a protocol with manifests", "plugin.json"),
    };
    fault::Found { pointer: String::new(), expected: what.to_owned(), got: format!("`{name}`") }
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// Compiles one schema with only the definitions it reaches: the whole document costs ten times as much.
fn compile(document: &Value, schema: &Value) -> Validator {
    let mut reached = Map::new();
    reach(document, schema, &mut reached);
    let mut whole = json!({ "allOf": [schema], "$defs": reached });
    whole["$schema"] = document["$schema"].clone();
    jsonschema::validator_for(&whole).expect("the schemas are generated from the wire types")
}

fn reach(document: &Value, schema: &Value, reached: &mut Map<String, Value>) {
    match schema {
        Value::Object(members) => {
            if let Some(name) = members.get("$ref").and_then(fault::definition_name)
                && !reached.contains_key(name)
            {
                let definition = &document["$defs"][name];
                reached.insert(name.to_owned(), definition.clone());
                reach(document, definition, reached);
            }
            members.values().for_each(|member| reach(document, member, reached));
        }
        Value::Array(items) => items.iter().for_each(|item| reach(document, item, reached)),
        _ => {}
    }
}
