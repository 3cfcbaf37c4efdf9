//! The names that each route knows, of query parameters and of members of its body, and what becomes of the others.
//!
//! The names come from the OpenAPI descriptions, so what is documented is what is known. Always: no unknown name is
//! ignored in silence. Baton's own routes refuse it and name the nearest known one. Routes that other queue clients
//! call accept it and answer with a header that lists it (`ignored`). Where speed matters, the reader of the body sees
//! each name anyway and reports it itself ([`route_reads`]). Start at [`screen`].

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::LazyLock;

use baton_http::path::decode;
use http::Method;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::error::{Error, Kind};
use crate::ignored::Ignored;
use crate::routes::Route;
use crate::unknown;

/// Where the paths of Baton's own routes begin. Published queue clients call the others.
pub const OWN: &[&str] = &[
    "/api/v1/caller",
    "/api/v1/cluster",
    "/api/v1/dead-letters",
    "/api/v1/dlq/",
    "/api/v1/dlq:",
    "/api/v1/election",
    "/api/v1/events",
    "/api/v1/executions",
    "/api/v1/fleet",
    "/api/v1/job",
    "/api/v1/kv",
    "/api/v1/leases",
    "/api/v1/locks",
    "/api/v1/nodes",
    "/api/v1/schedules",
    "/api/v1/settings",
    "/api/v1/shards",
    "/api/v1/system",
    "/api/v1/timers",
    "/api/v1/workers",
];

/// Where the paths begin whose bodies are checked for unknown members by their handlers: the hot ones, and those
/// whose types refuse unknown members already.
const READ_BY_HANDLER: &[&str] =
    &["/api/v1/ack", "/api/v1/job", "/api/v1/kv/:", "/api/v1/push", "/api/v1/timers", "/api/v1/workers"];

/// Whether `route` refuses unknown names.
pub fn is_strict(route: &Route) -> bool {
    OWN.iter().any(|own| route.path.starts_with(own))
}

/// Whether the handler of `route` checks the members of its body itself.
pub fn route_reads(route: &Route) -> bool {
    READ_BY_HANDLER.iter().any(|path| route.path.starts_with(path))
}

/// The names that one route knows.
#[derive(Debug)]
struct Known {
    parameters: Vec<String>,
    body: Shape,
}

/// Which members a value may have.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shape {
    /// Anything: the caller's own data.
    Any,
    /// Not an object or a list, or nothing is said of it.
    Plain,
    Object(BTreeMap<String, Shape>),
    List(Box<Shape>),
}

static KNOWN: LazyLock<HashMap<(Method, &'static str), Known>> = LazyLock::new(|| {
    let schemas = super::shape::shared();
    let operations = super::operations();
    let known = operations.map(|operation| {
        let parameters = operation.query.iter().filter(|parameter| parameter["in"] == "query");
        let parameters = parameters.filter_map(|parameter| parameter["name"].as_str());
        let parameters = parameters.map(str::to_owned).collect();
        let schema = operation.body.as_ref().map(|body| &body["content"]["application/json"]["schema"]);
        let body = schema.map_or(Shape::Object(BTreeMap::new()), |schema| Shape::of(schema, &schemas));
        ((operation.method, operation.path), Known { parameters, body })
    });
    known.collect()
});

impl Shape {
    fn of(schema: &Value, schemas: &Map<String, Value>) -> Self {
        if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            return schemas.get(name).map_or(Self::Any, |schema| Self::of(schema, schemas));
        }
        if schema.as_object().is_some_and(Map::is_empty) {
            return Self::Any;
        }
        for several in ["oneOf", "anyOf", "allOf"] {
            if let Some(several) = schema[several].as_array() {
                let shapes = several.iter().map(|schema| Self::of(schema, schemas));
                return shapes.fold(Self::Plain, Self::or);
            }
        }
        if let Some(properties) = schema["properties"].as_object() {
            let members = properties.iter().map(|(name, schema)| (name.clone(), Self::of(schema, schemas)));
            return Self::Object(members.collect());
        }
        match schema["type"].as_str() {
            Some("object") => Self::Any,
            Some("array") => Self::List(Box::new(Self::of(&schema["items"], schemas))),
            _ => Self::Plain,
        }
    }

    /// What is known to one or the other.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Plain, shape) | (shape, Self::Plain) => shape,
            (Self::Object(mut members), Self::Object(others)) => {
                for (name, other) in others {
                    let merged = match members.remove(&name) {
                        Some(own) => own.or(other),
                        None => other,
                    };
                    members.insert(name, merged);
                }
                Self::Object(members)
            }
            (Self::List(own), Self::List(other)) => Self::List(Box::new((*own).or(*other))),
            _ => Self::Any,
        }
    }
}

/// Looks for names in the query and the body of a request that its route does not know: refuses the request, or gives
/// the names, as the route wants it.
pub fn screen(route: &Route, query: &str, body: &[u8]) -> Result<Ignored, Error> {
    let looks_at_body = !body.is_empty() && !route_reads(route);
    if query.is_empty() && !looks_at_body {
        return Ok(Ignored::default());
    }
    let Some(known) = KNOWN.get(&(route.method.clone(), route.path)) else { return Ok(Ignored::default()) };
    let mut finder = Finder { strict: is_strict(route), ignored: Ignored::default(), refusal: None };
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let name = part.split_once('=').map_or(part, |(name, _)| name);
        if known.parameters.iter().any(|known| known == name) {
            continue;
        }
        // The handler refuses what cannot be decoded.
        let name = decode(name, true).unwrap_or(name.into());
        if !known.parameters.iter().any(|known| *known == name) {
            finder.found("parameter", &name, known.parameters.iter().map(String::as_str));
        }
    }
    if looks_at_body {
        let mut deserializer = serde_json::Deserializer::from_slice(body);
        // The handler refuses what is no JSON.
        let _ = Walk { shape: &known.body, finder: &mut finder }.deserialize(&mut deserializer);
    }
    finder.refusal.map_or(Ok(finder.ignored), |why| Err(refuse(route, why)))
}

/// A refusal in the form that other refusals of the route have.
fn refuse(route: &Route, why: String) -> Error {
    match route.path {
        path if path.starts_with("/api/v1/kv/:") => {
            Error::refused(Kind::KvInvalid, "kv_no_query_string", why)
        }
        path if path.starts_with("/api/v1/kv") => Error::refused(Kind::KvInvalid, "kv_bad_body", why),
        path if path.starts_with("/api/v1/locks") => {
            Error::refused(Kind::LocksInvalid, "locks_bad_body", why)
        }
        path if path.starts_with("/api/v1/timers") => {
            Error::refused(Kind::TimersInvalid, "timers_bad_body", why)
        }
        _ => Error::invalid(why),
    }
}

/// What was found in one request.
struct Finder {
    strict: bool,
    ignored: Ignored,
    refusal: Option<String>,
}

impl Finder {
    fn found<'k>(&mut self, what: &str, name: &str, known: impl Iterator<Item = &'k str>) {
        if !self.strict {
            self.ignored.add(name);
        } else if self.refusal.is_none() {
            self.refusal = Some(unknown::message(what, name, &known.collect::<Vec<_>>()));
        }
    }
}

/// Reads a value only for the names in it.
struct Walk<'s, 'f> {
    shape: &'s Shape,
    finder: &'f mut Finder,
}

impl<'de> DeserializeSeed<'de> for Walk<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.shape {
            Shape::Any | Shape::Plain => IgnoredAny::deserialize(deserializer).map(|_| ()),
            Shape::Object(_) | Shape::List(_) => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Walk<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Shape::Object(members) = self.shape else {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(());
        };
        while let Some(found) = map.next_key_seed(Name(members))? {
            match found {
                Ok(shape) => map.next_value_seed(Walk { shape, finder: self.finder })?,
                Err(name) => {
                    self.finder.found("member", &name, members.keys().map(String::as_str));
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Shape::List(shape) = self.shape else {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(());
        };
        while seq.next_element_seed(Walk { shape, finder: self.finder })?.is_some() {}
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
}

/// Reads the name of a member: what its value may be, or the name when it is not among these.
struct Name<'s>(&'s BTreeMap<String, Shape>);

impl<'de, 's> DeserializeSeed<'de> for Name<'s> {
    type Value = Result<&'s Shape, String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl<'s> Visitor<'_> for Name<'s> {
    type Value = Result<&'s Shape, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.get(name).ok_or_else(|| name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::{self, Found, ROUTES};

    fn screened(method: Method, path: &str, query: &str, body: &str) -> Result<String, String> {
        let Found::Route(route, _) = routes::find(&method, path) else { panic!("{path}") };
        screen(route, query, body.as_bytes())
            .map(|found| found.to_string())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_route_of_other_clients_lists_what_it_ignores() {
        let pop = |query| screened(Method::GET, "/api/v1/pop/queue/q", query, "").unwrap();
        assert_eq!(pop("wait=true&batch=1&consumer%47roup=g"), "");
        assert_eq!(pop("wiat=true&b%61tch=2&x%0d%0ay=1&wiat"), "wiat, x%0D%0Ay");
        let many: String = (0..20).map(|n| format!("p{n}=&")).collect();
        assert_eq!(pop(&many), "p0, p1, p2, p3, p4, p5, p6, p7, ...");
        assert_eq!(pop(&"z".repeat(2000)), format!("{}...", "z".repeat(40)));
        let body = r#"{"queue":"q","leaseTime":5,"options":{"leasTime":5},"extra":{"a":1}}"#;
        assert_eq!(screened(Method::POST, "/api/v1/configure", "", body).unwrap(), "leasTime, extra");
    }

    #[test]
    fn a_route_of_its_own_refuses_and_names_the_nearest() {
        let refused = screened(Method::GET, "/api/v1/shards/s", "workr=w", "").unwrap_err();
        assert_eq!(refused, r#"there is no parameter "workr": did you mean "worker"?"#);
        let body = r#"{"operations":[{"op":"put","ns":"n","key":"k","value":{"any":1},"ttl":1}]}"#;
        let refused = screened(Method::POST, "/api/v1/kv", "", body).unwrap_err();
        assert!(refused.starts_with(r#"there is no member "ttl""#), "{refused}");
        for body in ["", "{", "[]", "3", r#"{"operations":{"x":1}}"#] {
            assert_eq!(screened(Method::POST, "/api/v1/kv", "", body), Ok(String::new()), "{body}");
        }
    }

    #[test]
    fn every_member_of_an_election_record_is_known() {
        use baton_election::record::{EpochRecord, Phase, PhaseStep, ProcessRecord, WorkerRecord};
        let epoch = EpochRecord {
            epoch_number: 1,
            coordinator_id: "w".into(),
            incarnation: "i".into(),
            nonce: "n".into(),
            lease_seq: 1,
            epoch: 1,
            epoch_start: 1,
            released: false,
            step_down: false,
            handover_to: Some("x".into()),
            elected_by: "w".into(),
            duration_ms: 1,
            lease_ms: 1,
            process: Some("w.i".into()),
        };
        let worker = WorkerRecord {
            worker_id: "w".into(),
            last_heartbeat: 1,
            epoch: Some(1),
            is_coordinator: Some(true),
            incarnation: "i".into(),
            seq: 1,
            epoch_number: 1,
            phase: Phase::Ready,
            phases: vec![PhaseStep { phase: Phase::Ready, at: 1, duration: 1 }],
        };
        let process = ProcessRecord::fenced_record("w.i");
        for (path, action, record) in [
            ("/api/v1/elections/g", "swap", serde_json::to_value(epoch).unwrap()),
            ("/api/v1/elections/g", "beat", serde_json::to_value(worker).unwrap()),
            ("/api/v1/election-processes/w.i", "swap", serde_json::to_value(process).unwrap()),
        ] {
            let mut body = serde_json::json!({"action": action, "record": record});
            assert_eq!(screened(Method::POST, path, "", &body.to_string()), Ok(String::new()), "{body}");
            body["record"]["epochNumbr"] = 1.into();
            assert!(screened(Method::POST, path, "", &body.to_string()).is_err(), "{body}");
        }
    }

    #[test]
    fn every_route_refuses_or_reports_an_unknown_name() {
        for route in ROUTES {
            let found = screen(route, "no-such-parameter=1", b"");
            assert_eq!(found.is_err(), is_strict(route), "{} {}", route.method, route.path);
            assert!(found.is_err() || found.is_ok_and(|ignored| !ignored.is_empty()), "{}", route.path);
            if route.body_max > 0 && !route_reads(route) {
                let found = screen(route, "", br#"{"noSuchMember":1}"#);
                assert_eq!(found.is_err(), is_strict(route), "{} {}", route.method, route.path);
                assert!(found.is_err() || found.is_ok_and(|ignored| !ignored.is_empty()), "{}", route.path);
            }
        }
    }
}
