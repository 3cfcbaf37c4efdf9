//! `POST /api/v1/configure`: creates a queue or changes its options.
//!
//! Options may stand under `options` or beside the queue's name; those under `options` win. What is not given
//! keeps its value unless `mode` is `replace`.

use baton_http::Reply;
use serde_json::{Map, Value, json};

use crate::call::{Answer, Call};
use crate::error::Error;
use crate::json;
use crate::names;

#[derive(Debug, PartialEq)]
struct Request {
    queue: String,
    namespace: Option<String>,
    task: Option<String>,
    options: Map<String, Value>,
    replace: bool,
}

impl Request {
    fn read(body: &[u8]) -> Result<Self, Error> {
        let Value::Object(mut members) = json::parse(body)? else {
            return Err(Error::invalid("queue is required"));
        };
        let Some(Value::String(queue)) = members.remove("queue") else {
            return Err(Error::invalid("queue is required"));
        };
        let namespace = label(&mut members, "namespace")?;
        let task = label(&mut members, "task")?;
        let replace = match members.remove("mode") {
            None | Some(Value::Null) => false,
            Some(Value::String(mode)) if mode == "merge" => false,
            Some(Value::String(mode)) if mode == "replace" => true,
            Some(_) => return Err(Error::invalid("mode must be merge or replace")),
        };
        let nested = members.remove("options");
        let mut options = members;
        if let Some(Value::Object(nested)) = nested {
            options.extend(nested);
        }
        names::check("queue", &queue)?;
        Ok(Self { queue, namespace, task, options, replace })
    }
}

fn label(members: &mut Map<String, Value>, name: &str) -> Result<Option<String>, Error> {
    match members.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(label)) => {
            names::check(name, &label)?;
            Ok(Some(label))
        }
        Some(_) => Err(Error::invalid(format!("{name} must be a string"))),
    }
}

/// Creates or changes a queue.
pub(super) fn configure(mut call: Call) -> Answer {
    Box::pin(async move {
        let Request { queue, namespace, task, options, replace } = Request::read(&call.body()?)?;
        let configured =
            call.broker().configure(&queue, namespace.as_deref(), task.as_deref(), &options, replace).await?;
        Reply::ok(&json!({
            "configured": true,
            "queueId": configured.id.to_string(),
            "partitionId": null,
            "queue": configured.spec.name,
            "namespace": configured.spec.namespace,
            "task": configured.spec.task,
            "storage": "segments",
            "options": configured.spec.options,
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_stand_at_either_level() {
        let body = br#"{"queue":"q","namespace":null,"task":"t","leaseTime":5,"ttl":1,"options":{"ttl":2},"mode":"replace"}"#;
        let request = Request::read(body).unwrap();
        assert_eq!(Value::Object(request.options), json!({"leaseTime": 5, "ttl": 2}));
        assert_eq!((request.namespace, request.task.as_deref(), request.replace), (None, Some("t"), true));
        assert_eq!(Request::read(br#"{"queue":"","options":[]}"#).unwrap().options, Map::new());
    }

    #[test]
    fn a_queue_is_needed_and_a_mode_is_known() {
        for body in ["{}", "[]", r#"{"queue":5}"#, r#"{"queue":null}"#] {
            assert_eq!(
                Request::read(body.as_bytes()).unwrap_err().to_string(),
                "queue is required",
                "{body}"
            );
        }
        assert!(Request::read(br#"{"queue":"q","mode":"mix"}"#).is_err());
        assert!(Request::read(br#"{"queue":"q","task":5}"#).is_err());
    }
}
