//! The words in which a route is described: its query, its body, its answers.
//!
//! Start at [`get`] and [`post`], then [`Operation`].

use http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::shape::word;

/// What one route takes and answers.
#[derive(Debug)]
pub struct Operation {
    pub method: Method,
    pub path: &'static str,
    pub query: Vec<Value>,
    pub body: Option<Value>,
    pub answers: Map<String, Value>,
}

fn operation(method: Method, path: &'static str) -> Operation {
    Operation { method, path, query: Vec::new(), body: None, answers: Map::new() }
}

/// A GET of `path`, spelled as in the table of routes.
pub fn get(path: &'static str) -> Operation {
    operation(Method::GET, path)
}

/// A POST to `path`.
pub fn post(path: &'static str) -> Operation {
    operation(Method::POST, path)
}

/// A PUT to `path`.
pub fn put(path: &'static str) -> Operation {
    operation(Method::PUT, path)
}

/// A DELETE of `path`.
pub fn delete(path: &'static str) -> Operation {
    operation(Method::DELETE, path)
}

impl Operation {
    /// With these query parameters beside those it has.
    pub fn query(mut self, parameters: impl IntoIterator<Item = Value>) -> Self {
        self.query.extend(parameters);
        self
    }

    /// With a body that must be there.
    pub fn body(self, schema: Value) -> Self {
        self.with_body(true, schema)
    }

    /// With a body that may be left out.
    pub fn body_or_none(self, schema: Value) -> Self {
        self.with_body(false, schema)
    }

    fn with_body(mut self, required: bool, schema: Value) -> Self {
        let content = json!({"application/json": {"schema": schema}});
        self.body = Some(json!({"required": required, "content": content}));
        self
    }

    /// With an answer in JSON.
    pub fn answers(self, status: u16, help: &str, schema: Value) -> Self {
        self.answers_with(status, help, "application/json", schema)
    }

    /// With an answer of another type, beside those of the same status.
    pub fn answers_with(mut self, status: u16, help: &str, content_type: &str, schema: Value) -> Self {
        let answer = self.answers.entry(status.to_string()).or_insert_with(|| json!({"content": {}}));
        answer["description"] = help.into();
        answer["content"][content_type] = json!({"schema": schema});
        self
    }

    /// With an error beside those that any such route may answer.
    pub fn answers_error(mut self, status: StatusCode) -> Self {
        self.answers.insert(status.as_str().into(), error(status));
        self
    }

    /// With an answer that has no body.
    pub fn answers_nothing(mut self, status: u16, help: &str) -> Self {
        self.answers.insert(status.to_string(), json!({"description": help}));
        self
    }
}

/// An answer that is an error.
pub fn error(status: StatusCode) -> Value {
    json!({"$ref": format!("#/components/responses/{}", status.as_u16())})
}

fn parameter(name: &str, help: &str, schema: Value) -> Value {
    json!({"name": name, "in": "query", "description": help, "schema": schema})
}

/// A query parameter that is a text.
pub fn text(name: &str, help: &str) -> Value {
    parameter(name, help, word("text"))
}

/// A query parameter that is a text and must be there.
pub fn needed_text(name: &str, help: &str) -> Value {
    let mut parameter = text(name, help);
    parameter["required"] = true.into();
    parameter
}

/// One of the words between bars, or any other type that a shape knows.
pub fn one_of(name: &str, words: &str, help: &str) -> Value {
    parameter(name, help, word(words))
}

/// A query parameter that is a number.
pub fn whole(name: &str, min: u64, max: u64, help: &str) -> Value {
    parameter(name, help, json!({"type": "integer", "minimum": min, "maximum": max}))
}

/// A query parameter that is a moment.
pub fn moment(name: &str, help: &str) -> Value {
    parameter(name, help, word("time"))
}

/// A query parameter that is on or off.
pub fn flag(name: &str, help: &str) -> Value {
    parameter(name, help, word("flag"))
}

/// The parameters of a listing.
pub fn page(default_limit: u64) -> [Value; 2] {
    let max = baton_types::limits::PAGE_ROWS_MAX as u64;
    [
        whole("limit", 1, max, &format!("Rows to answer; {default_limit} unless given.")),
        whole("offset", 0, u64::MAX, "Rows to leave out first."),
    ]
}

/// The parameters of a span of time.
pub fn span(usual: &str) -> [Value; 2] {
    [
        moment("from", &format!("Beginning of the span; {usual} before its end unless given.")),
        moment("to", "End of the span; now unless given."),
    ]
}
