//! How a request came, as far as that matters for passing it on.

use baton_cluster::Cluster;
use baton_http::Head;
use baton_types::LeaseId;
use http::HeaderValue;

use crate::error::{Error, Kind};

/// How a request came.
#[derive(Debug)]
pub struct ForwardInfo {
    /// Its path and query, as they came.
    pub target: String,
    /// Its token, as it came.
    pub authorization: Option<HeaderValue>,
    /// Its idempotency key, as it came.
    pub idempotency_key: Option<HeaderValue>,
    /// Who passed it on.
    pub forwarded: Option<Forwarded>,
}

/// What the server says that passed a request on.
#[derive(Debug)]
pub struct Forwarded {
    /// The lease that a pop takes.
    pub attempt: Option<LeaseId>,
}

impl ForwardInfo {
    /// How the request with this head came; `None` when nobody needs to know. One that a server of another cluster
    /// passed on is refused, since it is meant for another store.
    pub fn of(head: &Head<'_>, cluster: Option<&Cluster>) -> Result<Option<Box<Self>>, Error> {
        let forwarded = match head.forwarded {
            None => None,
            Some((_, None)) => Some(Forwarded { attempt: None }),
            Some((_, Some(attempt))) => Some(Forwarded { attempt: admitted(attempt, cluster)? }),
        };
        let Some(cluster) = cluster else { return Ok(None) };
        if forwarded.is_none() && !cluster.has_live_peers() {
            return Ok(None);
        }
        let mut target = head.path.to_owned();
        if !head.query.is_empty() {
            target.push('?');
            target.push_str(head.query);
        }
        let header = |value: Option<&[u8]>| value.and_then(|value| HeaderValue::from_bytes(value).ok());
        let (authorization, idempotency_key) = (header(head.authorization), header(head.idempotency_key));
        Ok(Some(Box::new(Self { target, authorization, idempotency_key, forwarded })))
    }
}

/// The lease of a request that was passed on within `cluster`.
fn admitted(attempt: &[u8], cluster: Option<&Cluster>) -> Result<Option<LeaseId>, Error> {
    let text = std::str::from_utf8(attempt).unwrap_or_default();
    let (from, lease) = text.split_once(' ').unwrap_or((text, ""));
    let ours = cluster.map(|cluster| format!("{:016x}", cluster.options().seal.cluster()));
    if ours.as_deref() != Some(from) {
        return Err(Error::new(Kind::Misdirected, "a server of another cluster passed this on"));
    }
    Ok(lease.parse().ok())
}
