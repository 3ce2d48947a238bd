//! Finds the one place where a value breaks its schema, by walking both together.
//!
//! Unions with a tag (a `const` property in the branches) are entered by the value's own tag. It knows the keywords
//! that the generated schemas use; what it cannot tell it leaves to jsonschema's own error.

use serde_json::{Map, Value};

use super::{Fault, Part};

/// How many characters of a value an error shows.
const SHOWN: usize = 80;

/// A fault without the name of what was checked.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) pointer: String,
    pub(super) expected: String,
    pub(super) got: String,
}

impl Found {
    /// Returns what jsonschema itself says, for keywords that the walk does not know.
    pub(super) fn foreign(error: &jsonschema::ValidationError<'_>, value: &Value) -> Self {
        let pointer = error.instance_path().to_string();
        let got = value.pointer(&pointer).map_or("nothing".to_owned(), clip);
        Self { pointer, expected: format!("a value that fits the schema ({error})"), got }
    }

    pub(super) fn into_fault(self, method: &str, part: Option<Part>) -> Fault {
        let Self { pointer, expected, got } = self;
        Fault { method: method.to_owned(), part, pointer, expected, got }
    }
}

/// Returns the first place where `value` breaks `schema`; nothing when this walk cannot tell.
pub(super) fn find(document: &Value, schema: &Value, value: &Value) -> Option<Found> {
    Walk { document }.search(schema, value, &Place::Root)
}

/// Returns the name in `#/$defs/NAME`.
pub(super) fn definition_name(reference: &Value) -> Option<&str> {
    reference.as_str()?.strip_prefix("#/$defs/")
}

/// Returns a value as JSON text of limited length.
pub(super) fn clip(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Where the walk stands; a pointer is only written out when there is a fault.
enum Place<'a> {
    Root,
    Key(&'a Place<'a>, &'a str),
    Index(&'a Place<'a>, usize),
}

impl Place<'_> {
    fn pointer(&self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Key(parent, key) => {
                format!("{}/{}", parent.pointer(), key.replace('~', "~0").replace('/', "~1"))
            }
            Self::Index(parent, index) => format!("{}/{index}", parent.pointer()),
        }
    }

    fn fault(&self, expected: impl Into<String>, value: Option<&Value>) -> Option<Found> {
        let got = value.map_or("nothing".to_owned(), clip);
        Some(Found { pointer: self.pointer(), expected: expected.into(), got })
    }
}

struct Walk<'d> {
    document: &'d Value,
}

impl<'d> Walk<'d> {
    fn search(&self, schema: &'d Value, value: &Value, place: &Place<'_>) -> Option<Found> {
        let members = match schema {
            Value::Bool(false) => return place.fault("nothing", Some(value)),
            Value::Object(members) => members,
            _ => return None,
        };
        // The tag first: it says which branch the rest is about.
        ["oneOf", "anyOf"]
            .iter()
            .filter_map(|keyword| members.get(*keyword)?.as_array())
            .find_map(|branches| self.search_union(branches, value, place))
            .or_else(|| self.search(self.definition(members)?, value, place))
            .or_else(|| self.search_value(members, value, place))
            .or_else(|| self.search_object(members, value, place))
            .or_else(|| self.search_array(members, value, place))
    }

    fn definition(&self, members: &'d Map<String, Value>) -> Option<&'d Value> {
        self.document["$defs"].get(definition_name(members.get("$ref")?)?)
    }

    /// Returns a property's schema in a branch, through its reference.
    fn property(&self, branch: &'d Value, key: &str) -> Option<&'d Value> {
        branch["properties"].get(key).or_else(|| {
            let definition = self.definition(branch.as_object()?)?;
            self.property(definition, key)
        })
    }

    fn search_union(&self, branches: &'d [Value], value: &Value, place: &Place<'_>) -> Option<Found> {
        if branches.iter().any(|branch| branch["type"] == "null") && value.is_null() {
            return None;
        }
        let rest: Vec<&Value> = branches.iter().filter(|branch| branch["type"] != "null").collect();
        if let [only] = rest[..] {
            return self.search(only, value, place);
        }
        let tag = ["kind", "type", "point"].into_iter().find(|tag| {
            rest.iter().any(|branch| self.property(branch, tag).is_some_and(|tag| tag.get("const").is_some()))
        })?;
        let Some(object) = value.as_object() else { return place.fault("object", Some(value)) };
        let known = |branch: &&&'d Value| Some(self.property(branch, tag)?.get("const")?.clone());
        if let Some(given) = object.get(tag) {
            let chosen = rest.iter().find(|branch| known(branch).as_ref() == Some(given));
            // A branch that names no tag takes every other one: the unknown view.
            let open = || rest.iter().find(|branch| given.is_string() && known(branch).is_none());
            if let Some(branch) = chosen.or_else(open) {
                return self.search(branch, value, place);
            }
        }
        let tags: Vec<String> = rest.iter().filter_map(|branch| Some(known(&branch)?.to_string())).collect();
        let expected = if tags.len() == 1 { tags[0].clone() } else { format!("one of {}", tags.join(", ")) };
        Place::Key(place, tag).fault(expected, object.get(tag))
    }

    fn search_value(&self, members: &Map<String, Value>, value: &Value, place: &Place<'_>) -> Option<Found> {
        let fits = |limit: &str, fits: fn(f64, f64) -> bool, measure: Option<f64>| match (
            members.get(limit).and_then(Value::as_f64),
            measure,
        ) {
            (Some(limit), Some(measure)) => fits(measure, limit),
            _ => true,
        };
        let length = value.as_str().map(|text| text.chars().count() as f64);
        let items = value.as_array().map(|items| items.len() as f64);
        let bounds = [
            ("minimum", "at least", "", fits("minimum", |have, limit| have >= limit, value.as_f64())),
            ("maximum", "at most", "", fits("maximum", |have, limit| have <= limit, value.as_f64())),
            ("minLength", "at least", " characters", fits("minLength", |have, limit| have >= limit, length)),
            ("maxLength", "at most", " characters", fits("maxLength", |have, limit| have <= limit, length)),
            ("minItems", "at least", " items", fits("minItems", |have, limit| have >= limit, items)),
            ("maxItems", "at most", " items", fits("maxItems", |have, limit| have <= limit, items)),
        ];
        let type_fits =
            members.get("type").is_none_or(|types| one_or_many(types).any(|name| is_type(name, value)));
        let listed = members.get("enum").and_then(Value::as_array).is_none_or(|list| list.contains(value));
        let same = members.get("const").is_none_or(|constant| constant == value);
        if !(type_fits && listed && same) {
            return place.fault(self.describe(members), Some(value));
        }
        let (limit, words, unit, _) = bounds.into_iter().find(|(.., fits)| !fits)?;
        place.fault(format!("{words} {}{unit}", members[limit]), Some(value))
    }

    fn search_object(
        &self,
        members: &'d Map<String, Value>,
        value: &Value,
        place: &Place<'_>,
    ) -> Option<Found> {
        let object = value.as_object()?;
        let properties = members.get("properties").and_then(Value::as_object);
        let schema_of = |key: &str| properties.and_then(|properties| properties.get(key));
        let required = members.get("required").and_then(Value::as_array).into_iter().flatten();
        if let Some(missing) = required.filter_map(Value::as_str).find(|key| !object.contains_key(*key)) {
            let expected =
                schema_of(missing).map_or("a value".to_owned(), |schema| self.describe_schema(schema));
            return Place::Key(place, missing).fault(expected, None);
        }
        let others = members.get("additionalProperties");
        object.iter().find_map(|(key, value)| {
            let schema = schema_of(key).or(others)?;
            self.search(schema, value, &Place::Key(place, key))
        })
    }

    fn search_array(
        &self,
        members: &'d Map<String, Value>,
        value: &Value,
        place: &Place<'_>,
    ) -> Option<Found> {
        let (schema, items) = (members.get("items")?, value.as_array()?);
        items
            .iter()
            .enumerate()
            .find_map(|(index, item)| self.search(schema, item, &Place::Index(place, index)))
    }

    /// Returns in words what a schema wants.
    fn describe_schema(&self, schema: &Value) -> String {
        let Some(members) = schema.as_object() else { return "a value".to_owned() };
        match self.document["$defs"].get(members.get("$ref").and_then(definition_name).unwrap_or_default()) {
            Some(definition) => self.describe_schema(definition),
            None => self.describe(members),
        }
    }

    fn describe(&self, members: &Map<String, Value>) -> String {
        if let Some(constant) = members.get("const") {
            return constant.to_string();
        }
        if let Some(list) = members.get("enum").and_then(Value::as_array) {
            let list: Vec<String> = list.iter().map(Value::to_string).collect();
            return format!("one of {}", list.join(", "));
        }
        if let Some(types) = members.get("type") {
            return one_or_many(types).collect::<Vec<_>>().join(" or ");
        }
        for keyword in ["oneOf", "anyOf"] {
            if let Some(branches) = members.get(keyword).and_then(Value::as_array) {
                let mut words: Vec<String> =
                    branches.iter().map(|branch| self.describe_schema(branch)).collect();
                words.dedup();
                return words.join(" or ");
            }
        }
        "a value".to_owned()
    }
}

fn one_or_many(types: &Value) -> impl Iterator<Item = &str> {
    let many = types.as_array().into_iter().flatten();
    many.chain(types.is_string().then_some(types)).filter_map(Value::as_str)
}

fn is_type(name: &str, value: &Value) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        _ => true,
    }
}
