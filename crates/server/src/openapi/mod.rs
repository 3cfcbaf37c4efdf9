//! The OpenAPI document, made from the table of routes and a description of each.
//!
//! What a route is for and who may call it stands in [`ROUTES`]; what it takes and answers is described here, as
//! data, in a file per subject. Errors come from their own table, so no description lists them. Always: each route
//! has one description and each description a route; a test says which one lacks the other. Not here: checking
//! requests (handlers do).
//!
//! A new route needs one entry in the file of its subject, say
//! `post("/api/v1/things/:thing").body(shape(..)).answers(200, "The thing.", shape(..))`. Start at [`document`].

mod describe;
mod groups;
mod jobs;
pub mod known;
mod messages;
mod queue;
mod records;
mod resources;
mod schedules;
mod shape;
mod shards;
mod status;
mod system;

use std::sync::LazyLock;

use baton_auth::Access;
use http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use crate::error;
use crate::routes::{ROUTES, Route};
use describe::Operation;

/// The page that shows the document to people.
pub const PAGE: &str = include_str!("page.html");

/// The document as text, made once.
pub fn text() -> &'static str {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_string());
    &DOCUMENT
}

/// A subject, what it is about, and its routes.
type Subject = (&'static str, &'static str, Vec<Operation>);

/// Every description, by subject, in the order in which the page shows them.
fn subjects() -> Vec<Subject> {
    vec![
        ("queue", "Push, pop, ack: what producers and consumers do.", queue::operations()),
        ("messages", "Looking at messages, and dead letters.", messages::operations()),
        ("groups", "Consumer groups: how far they are, and moving them.", groups::operations()),
        ("records", "Records, locks, timers, and reading without a lease.", records::operations()),
        ("jobs", "Work that is accepted, run by a worker, and tried again.", jobs::operations()),
        ("workers", "What workers say and hear.", jobs::workers()),
        ("schedules", "Jobs that come by themselves.", schedules::operations()),
        ("elections", "Who coordinates a group.", system::elections()),
        ("shards", "Which worker has which shard of a service.", shards::operations()),
        ("streams", "The server's part of stream processing.", system::streams()),
        ("traces", "What consumers say about messages.", system::traces()),
        ("resources", "What there is, counted; deleting and emptying queues.", resources::operations()),
        ("cluster", "The servers that share a store.", system::cluster()),
        ("status", "How the server is doing, now and over time.", status::operations()),
        ("system", "Maintenance, and what servers tell each other.", system::maintenance()),
    ]
}

/// Every description.
fn operations() -> impl Iterator<Item = Operation> {
    subjects().into_iter().flat_map(|(_, _, operations)| operations)
}

/// The whole document.
fn document() -> Value {
    let mut paths = Map::new();
    let mut tags = Vec::new();
    for (tag, help, operations) in subjects() {
        tags.push(json!({"name": tag, "description": help}));
        for operation in operations {
            let found = ROUTES.iter().find(|r| r.method == operation.method && r.path == operation.path);
            let Some(route) = found else { continue };
            let item = paths.entry(template(route.path)).or_insert_with(|| json!({}));
            item[route.method.as_str().to_lowercase()] = described(route, tag, operation);
        }
    }
    let mut schemas = shape::shared();
    schemas.insert("Error".into(), error_schema());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Baton",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Queues over HTTP. Baton's own routes refuse unknown members and parameters; the others \
                name them in the header `Baton-Ignored`. A number out of range in a query is moved into it. A token is needed only when the server was started with authentication.",
            "license": {"name": env!("CARGO_PKG_LICENSE")},
        },
        "tags": tags,
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
            "schemas": schemas,
            "responses": error_responses(),
        },
    })
}

/// One route and its description as the document has them.
fn described(route: &Route, tag: &str, operation: Operation) -> Value {
    let mut responses = Map::new();
    for status in error_statuses().filter(|status| can_answer(route, *status)) {
        responses.insert(status.as_str().into(), describe::error(status));
    }
    responses.extend(operation.answers);
    let names = route.path.split('/').filter_map(|segment| segment.strip_prefix([':', '*']));
    let open = names.map(|name| {
        json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}})
    });
    let parameters: Vec<_> = open.chain(operation.query).collect();
    let (access, needs_token) = match route.access {
        Access::Public => ("public", false),
        Access::Read => ("read", true),
        Access::Push => ("push", true),
        Access::Write => ("write", true),
        Access::Admin => ("admin", true),
    };
    let mut described = json!({
        "operationId": operation_id(route),
        "tags": [tag],
        "summary": route.help,
        "x-access": access,
        "parameters": parameters,
        "responses": responses,
        // An empty requirement beside the token: authentication may be off.
        "security": if needs_token { json!([{"token": []}, {}]) } else { json!([]) },
    });
    if let Some(body) = operation.body {
        described["requestBody"] = body;
    }
    described
}

/// `/a/:b` as `/a/{b}`.
fn template(path: &str) -> String {
    let segment = |segment: &str| match segment.strip_prefix([':', '*']) {
        Some(name) => format!("{{{name}}}"),
        None => segment.to_owned(),
    };
    path.split('/').map(segment).collect::<Vec<_>>().join("/")
}

fn operation_id(route: &Route) -> String {
    let path = route.path.trim_start_matches("/api/v1").replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    let words: Vec<_> = path.split('_').filter(|word| !word.is_empty()).collect();
    format!("{}_{}", route.method.as_str().to_lowercase(), words.join("_"))
}

/// The statuses of the error table, each once.
fn error_statuses() -> impl Iterator<Item = StatusCode> {
    let mut statuses: Vec<_> = error::TABLE.iter().map(|row| row.status).collect();
    statuses.sort_unstable();
    statuses.dedup();
    statuses.into_iter()
}

/// Where jobs are described, by themselves or within something else.
const WITH_JOBS: &[&str] = &[
    "/api/v1/jobs",
    "/api/v1/job-queues",
    "/api/v1/schedules",
    "/api/v1/dead-letters",
    "/api/v1/workers",
    "/api/v1/executions",
    "/api/v1/transaction",
];

/// Whether `route` may answer with an error of `status`.
fn can_answer(route: &Route, status: StatusCode) -> bool {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => route.access != Access::Public,
        StatusCode::NOT_FOUND => route.path.contains("/:"),
        StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED | StatusCode::TOO_MANY_REQUESTS => {
            route.method == Method::POST
        }
        StatusCode::NOT_IMPLEMENTED => false,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => route.body_max > 0,
        StatusCode::UNPROCESSABLE_ENTITY => {
            WITH_JOBS.iter().any(|prefix| route.path.starts_with(prefix)) && route.method != Method::DELETE
        }
        StatusCode::INSUFFICIENT_STORAGE => {
            route.method != Method::GET || route.path.starts_with("/api/v1/pop")
        }
        _ => true,
    }
}

fn error_responses() -> Map<String, Value> {
    let response = |status: StatusCode| {
        let rows = error::TABLE.iter().filter(|row| row.status == status);
        let help: Vec<_> = rows.map(|row| format!("`{}`: {}", row.code, row.help)).collect();
        let content = json!({"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}});
        (status.as_str().to_owned(), json!({"description": help.join("\n\n"), "content": content}))
    };
    error_statuses().map(response).collect()
}

fn error_schema() -> Value {
    let codes: Vec<_> = error::TABLE.iter().map(|row| row.code).collect();
    json!({
        "type": "object",
        "required": ["error", "code"],
        "properties": {
            "error": {"type": "string", "description": "What went wrong, for people."},
            "code": {"enum": codes, "description": "What went wrong, for programs."},
            "success": {"const": false, "description": "Only where clients expect it."},
            "reason": {"type": "string", "description": "Finer than `code`, of records, locks and timers."},
            "detail": {"type": "string", "description": "What went wrong for people, where `error` is the code."},
            "messages": {"type": "array", "maxItems": 0, "description": "Only of a refused pop."},
        },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::routes::TimeoutClass;

    #[test]
    fn each_route_has_one_description_and_each_description_a_route() {
        let mut described = BTreeSet::new();
        for operation in operations() {
            let name = format!("{} {}", operation.method, operation.path);
            assert!(described.insert(name.clone()), "{name} is described twice in src/openapi");
        }
        let routes: BTreeSet<_> = ROUTES.iter().map(|r| format!("{} {}", r.method, r.path)).collect();
        let lacking: Vec<_> = routes.difference(&described).collect();
        assert!(
            lacking.is_empty(),
            "describe what it takes and answers in a file of src/openapi: {lacking:#?}"
        );
        let stale: Vec<_> = described.difference(&routes).collect();
        assert!(stale.is_empty(), "src/openapi describes what is no route: {stale:#?}");
    }

    /// Calls `visit` with every string under `value`, and the member it is under.
    fn strings<'a>(value: &'a Value, member: &'a str, visit: &mut impl FnMut(&'a str, &'a str)) {
        match value {
            Value::String(text) => visit(member, text),
            Value::Array(elements) => elements.iter().for_each(|element| strings(element, member, visit)),
            Value::Object(members) => members.iter().for_each(|(name, value)| strings(value, name, visit)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_word_is_known() {
        let document = document();
        let mut references = 0;
        strings(&document, "", &mut |member, text| {
            assert_ne!(member, shape::UNKNOWN, "{text:?} is no type; shape.rs has the list");
            if member == "$ref" {
                references += 1;
                let place = text.trim_start_matches('#');
                assert!(document.pointer(place).is_some(), "{text} is not in the document");
            }
        });
        assert!(references > ROUTES.len(), "{references}");
    }

    #[test]
    fn each_route_says_how_it_succeeds_and_names_itself() {
        let document = document();
        let mut names = BTreeSet::new();
        for route in ROUTES {
            let described = &document["paths"][template(route.path)][route.method.as_str().to_lowercase()];
            let responses = described["responses"].as_object().unwrap();
            assert!(responses.keys().any(|status| status.starts_with('2')), "{}", route.path);
            assert!(names.insert(described["operationId"].to_string()), "{}", route.path);
            assert_eq!(responses.contains_key("401"), route.access != Access::Public, "{}", route.path);
        }
    }

    #[test]
    fn a_route_that_can_be_asked_to_wait_is_given_the_time() {
        for operation in operations() {
            let mut waits = false;
            for parameter in &operation.query {
                waits |= ["wait", "timeoutMs"].iter().any(|name| parameter["name"] == *name);
            }
            let body = operation.body.unwrap_or_default().to_string();
            waits |= ["\"waitMs\"", "\"maxWaitMs\""].iter().any(|name| body.contains(name));
            let route = ROUTES.iter().find(|r| r.method == operation.method && r.path == operation.path);
            let given =
                matches!(route.unwrap().timeout_class, TimeoutClass::Asked(_) | TimeoutClass::Waits(_));
            assert_eq!(waits, given, "{} {}", operation.method, operation.path);
        }
    }

    #[test]
    fn the_page_asks_nobody_else() {
        assert!(!PAGE.contains("http://") && !PAGE.contains("https://") && !PAGE.contains("src="));
    }
}
