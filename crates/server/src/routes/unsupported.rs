//! Routes that newer servers of Queen have and this one has not, each with what to use instead.
//!
//! Without them a caller would get the answer to a misspelt path. The table in `docs/coming-from-queen.md` is compared with
//! this one. Start at [`UNSUPPORTED`].

use crate::error::{Error, Kind};

/// Routes that do not exist here.
#[derive(Debug)]
pub struct Unsupported {
    /// Their path; a star stands for the rest.
    pub path: &'static str,
    /// What they are for.
    pub what: &'static str,
    /// What to use instead.
    pub instead: &'static str,
}

const fn unsupported(path: &'static str, what: &'static str, instead: &'static str) -> Unsupported {
    Unsupported { path, what, instead }
}

/// All of them.
#[rustfmt::skip]
pub const UNSUPPORTED: &[Unsupported] = &[
    unsupported("/api/v1/ephemeral/*", "queues in memory only", "use an ordinary queue with `ttl`, `maxSize` and `autoAck` pops: its messages are on disk and stay over a restart"),
    unsupported("/streams/v1/claim", "claiming partitions for a stream query", "pop the source queue with the group of the query, as the SDKs do"),
    unsupported("/streams/v1/state/partitions", "listing the partitions that have state", "list partitions with `GET /api/v1/resources/partitions?queue=`, then read each with `POST /streams/v1/state/get`"),
    unsupported("/api/v1/migration/*", "moving Queen's data between stores", "let consumers empty the old server while producers push to this one; `baton migrate` brings the schema of a PostgreSQL up to date"),
    unsupported("/api/v1/system/kv-timers", "switching records and timers off", "leave them on: they cost nothing while they are not used"),
    unsupported("/api/v1/system/ephemeral", "switching queues in memory on", "use ordinary queues"),
    unsupported("/api/v1/system/raft/*", "members of a Raft cluster", "set `store` to one PostgreSQL and `peers` on each server; see `GET /api/v1/cluster`"),
    unsupported("/api/v1/raft/*", "the state of a Raft cluster", "ask `GET /api/v1/cluster` and `/health`"),
    unsupported("/api/v1/system/link", "a standby cluster", "replicate the PostgreSQL, and start servers on the copy"),
    unsupported("/api/v1/system/link/*", "promoting a standby cluster", "promote the copy of the PostgreSQL"),
    unsupported("/api/cp/*", "plans and tenants of the proxy", "run a server for each tenant, and give tokens with roles"),
];

/// The refusal of a path that is among them.
pub fn refusal(path: &str) -> Option<Error> {
    let is_meant = |pattern: &str| match pattern.strip_suffix('*') {
        Some(beginning) => path.starts_with(beginning),
        None => path == pattern,
    };
    let found = UNSUPPORTED.iter().find(|unsupported| is_meant(unsupported.path))?;
    let text = format!("Baton does not support {}; {}", found.what, found.instead);
    Some(Error::new(Kind::NotSupported, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::ROUTES;

    #[test]
    fn what_is_not_supported_says_what_to_use_instead() {
        let refused = refusal("/api/v1/ephemeral/push").unwrap();
        assert_eq!(refused.kind(), Kind::NotSupported);
        assert!(refused.to_string().contains("ordinary queue"), "{refused}");
        for path in ["/streams/v1/claim", "/streams/v1/state/partitions", "/api/v1/migration/status"] {
            assert!(refusal(path).is_some(), "{path}");
        }
        assert!(refusal("/api/v1/nonsense").is_none());
    }

    #[test]
    fn no_route_is_said_to_be_unsupported() {
        let found = ROUTES.iter().find(|route| refusal(route.path).is_some());
        assert!(found.is_none(), "{found:?}");
    }
}
