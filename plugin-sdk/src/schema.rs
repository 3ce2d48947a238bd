//! Generates `schema/plugin.json` and `schema/rpc.json` from the wire types.

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use crate::jsonrpc::{Method, Notice};
use crate::{calls, manifest, rpc};

/// Walks the tables of a protocol.
pub(crate) trait Visitor {
    fn method<M: Method>(&mut self);
    fn notification<N: Notice>(&mut self);
}

struct Collector {
    generator: SchemaGenerator,
    methods: Map<String, Value>,
    notifications: Map<String, Value>,
}

impl Collector {
    fn new() -> Self {
        let bounds = RecursiveTransform(bound_integer);
        let generator = SchemaSettings::draft2020_12().with_transform(bounds).into_generator();
        Self { generator, methods: Map::new(), notifications: Map::new() }
    }

    fn reference<T: JsonSchema>(&mut self) -> Value {
        self.generator.subschema_for::<T>().to_value()
    }

    fn document(mut self, title: &str, protocol: u32) -> Map<String, Value> {
        let mut definitions = self.generator.take_definitions(true);
        definitions.sort_keys();
        let document = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": title,
            "protocol": protocol,
            "methods": self.methods,
            "notifications": self.notifications,
            "$defs": definitions,
        });
        match document {
            Value::Object(members) => members,
            _ => Map::new(),
        }
    }
}

impl Visitor for Collector {
    fn method<M: Method>(&mut self) {
        let row = json!({ "params": self.reference::<M::Params>(), "result": self.reference::<M::Result>() });
        self.methods.insert(M::NAME.to_owned(), row);
    }

    fn notification<N: Notice>(&mut self) {
        let row = json!({ "params": self.reference::<N::Params>() });
        self.notifications.insert(N::NAME.to_owned(), row);
    }
}

/// Gives an integer the bounds of its width: a format is only a remark, and what passes the schema must be readable.
fn bound_integer(schema: &mut Schema) {
    let Some(format) = schema.get("format").and_then(Value::as_str) else { return };
    let (least, most) = match format {
        "int32" => (json!(i32::MIN), json!(i32::MAX)),
        "uint16" => (json!(0), json!(u16::MAX)),
        "uint32" => (json!(0), json!(u32::MAX)),
        "uint64" | "uint" => (json!(0), json!(u64::MAX)),
        _ => return,
    };
    schema.insert("minimum".to_owned(), least);
    schema.insert("maximum".to_owned(), most);
}

/// Returns the schema of the plugin protocol.
pub fn plugin() -> Value {
    let mut collector = Collector::new();
    calls::methods::visit(&mut collector);
    calls::notifications::visit(&mut collector);
    let manifest = collector.reference::<manifest::Manifest>();
    let host_service = json!({
        "key": calls::HOST_SERVICE,
        "methods": {
            "ask": { "params": collector.reference::<calls::AskParams>(), "result": collector.reference::<calls::AskResult>() },
            "notice": { "params": collector.reference::<calls::NoticeParams>(), "result": collector.reference::<calls::NoticeResult>() },
        },
    });
    let mut document = collector.document("bingo plugin", calls::PROTOCOL);
    document.insert("manifest".to_owned(), manifest);
    document.insert("hostService".to_owned(), host_service);
    Value::Object(document)
}

/// Returns the schema of the RPC protocol.
pub fn rpc() -> Value {
    let mut collector = Collector::new();
    rpc::methods::visit(&mut collector);
    rpc::notifications::visit(&mut collector);
    Value::Object(collector.document("bingo rpc", rpc::PROTOCOL))
}

/// Returns a schema as the text of its committed file.
pub fn to_text(schema: &Value) -> String {
    format!("{schema:#}\n")
}
