//! The settings about shards: where their workers find a socket, when a worker counts as gone, how shards are spread.

use std::time::Duration;

use baton_shards::Allocation;
use baton_shards::limits::{SHARDS_MAX, TIMEOUT_MAX, TIMEOUT_MIN};
use baton_types::Secret;

use super::security::text_or_file;
use super::values::{number, set, show_millis};
use crate::setting::{Setting, setting};
use crate::shards::ShardsListen;

pub(super) const LISTEN: Setting = setting(
    ["shards_listen", "shards-listen", "BATON_SHARDS_LISTEN"],
    &["SHARD_COORDINATOR_BIND_HOST", "SHARD_COORDINATOR_BIND_PORT"],
    "HOST:PORT",
    "The address of the ZeroMQ socket for shard workers; `off` unless given. The host alone means port 5555, the port alone \
     means 127.0.0.1, port 0 picks a free one and prints it. Beyond loopback, give `shards_curve_secret_key`.",
    |s, text| listen(&mut s.shards.listen, text),
    |s| if s.shards.listen.is_off() { "off".into() } else { show_listen(&s.shards.listen) },
);
pub(super) const TIMEOUT: Setting = setting(
    [
        "shards_heartbeat_timeout_seconds",
        "shards-heartbeat-timeout-seconds",
        "BATON_SHARDS_HEARTBEAT_TIMEOUT_SECONDS",
    ],
    &["HEARTBEAT_TIMEOUT_SECONDS"],
    "SECONDS",
    "How long a worker of shards may be silent before it counts as gone. It is also the lease of workers that have one.",
    |s, text| set(&mut s.shards.timeout, text, timeout),
    |s| show_seconds(s.shards.timeout),
);
pub(super) const CHECK_INTERVAL: Setting = setting(
    [
        "shards_heartbeat_check_interval_seconds",
        "shards-heartbeat-check-interval-seconds",
        "BATON_SHARDS_HEARTBEAT_CHECK_INTERVAL_SECONDS",
    ],
    &["HEARTBEAT_CHECK_INTERVAL_SECONDS"],
    "SECONDS",
    "How often silent workers are expired.",
    |s, text| set(&mut s.shards.check_interval, text, timeout),
    |s| show_seconds(s.shards.check_interval),
);
pub(super) const FORGET_AFTER: Setting = setting(
    [
        "shards_inactive_worker_timeout_seconds",
        "shards-inactive-worker-timeout-seconds",
        "BATON_SHARDS_INACTIVE_WORKER_TIMEOUT_SECONDS",
    ],
    &["INACTIVE_WORKER_TIMEOUT_SECONDS"],
    "SECONDS",
    "How long a dead worker stays listed.",
    |s, text| set(&mut s.shards.forget_after, text, timeout),
    |s| show_seconds(s.shards.forget_after),
);
pub(super) const ALLOCATION: Setting = setting(
    ["shards_allocation", "shards-allocation", "BATON_SHARDS_ALLOCATION"],
    &[],
    "contiguous|sticky",
    "How shards are spread: a run of numbers for each worker in the order of their ids, or with as few moves as \
     possible.",
    |s, text| set(&mut s.shards.allocation, text, allocation),
    |s| match s.shards.allocation {
        Allocation::Contiguous => "contiguous".into(),
        Allocation::Sticky => "sticky".into(),
    },
);
pub(super) const REBALANCE_INTERVAL: Setting = setting(
    ["shards_rebalance_interval_ms", "shards-rebalance-interval-ms", "BATON_SHARDS_REBALANCE_INTERVAL_MS"],
    &[],
    "MS",
    "The least time between two revocations of shards from live workers, so that a rolling restart moves shards once. Shards without an owner are granted at once.",
    |s, text| set(&mut s.shards.rebalance_interval, text, |text| number(text).map(Duration::from_millis)),
    |s| show_millis(s.shards.rebalance_interval),
);
pub(super) const MAX: Setting = setting(
    ["shards_max", "shards-max", "BATON_SHARDS_MAX"],
    &[],
    "COUNT",
    "Shards that a service may have.",
    |s, text| set(&mut s.shards.max, text, most),
    |s| s.shards.max.to_string(),
);
pub(super) const CONNECTIONS_MAX: Setting = setting(
    ["shards_connections_max", "shards-connections-max", "BATON_SHARDS_CONNECTIONS_MAX"],
    &[],
    "COUNT",
    "ZeroMQ connections at a time. Above that, connections that never sent a message are closed first.",
    |s, text| set(&mut s.shards.connections_max, text, connections),
    |s| s.shards.connections_max.to_string(),
);
pub(super) const CURVE_SECRET_KEY: Setting = setting(
    ["shards_curve_secret_key", "shards-curve-secret-key", "BATON_SHARDS_CURVE_SECRET_KEY"],
    &[],
    "SECRET",
    "The secret key of the ZeroMQ socket, 40 characters of Z85. With it only workers that know the public key can \
     connect, and everything is encrypted. `@FILE` reads it from a file.",
    |s, text| set(&mut s.shards.curve_secret_key, text, secret_key),
    |_| String::new(),
);
pub(super) const CURVE_CLIENTS: Setting = setting(
    ["shards_curve_clients", "shards-curve-clients", "BATON_SHARDS_CURVE_CLIENTS"],
    &[],
    "KEYS",
    "Public keys, in Z85 with white space or line breaks between, of the workers that may connect; any that knows the \
     server's public key unless given. `@FILE` reads them from a file.",
    |s, text| set(&mut s.shards.curve_clients, text, client_keys),
    |s| s.shards.curve_clients.join(" "),
);

fn listen(place: &mut ShardsListen, text: &str) -> Result<(), String> {
    let wrong = || "give HOST:PORT, HOST, PORT or off, for instance 127.0.0.1:5555".to_owned();
    let bare = text.strip_prefix("tcp://").unwrap_or(text);
    if bare == "off" {
        *place = ShardsListen::default();
        return Ok(());
    }
    if bare.is_empty() || bare.contains('/') || bare.contains(char::is_whitespace) {
        return Err(wrong());
    }
    if bare.bytes().all(|byte| byte.is_ascii_digit()) {
        place.port = Some(bare.parse().map_err(|_| wrong())?);
        return Ok(());
    }
    let with_port = bare.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
    let (host, port) = match with_port {
        Some((host, port)) => (host, Some(port.parse().map_err(|_| wrong())?)),
        None => (bare, None),
    };
    if host.is_empty() {
        return Err(wrong());
    }
    place.host = Some(host.to_owned());
    place.port = port.or(place.port);
    Ok(())
}

fn show_listen(place: &ShardsListen) -> String {
    format!("{}:{}", place.host(), place.port())
}

fn timeout(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "give seconds, for instance 15 or 0.5".to_owned())?;
    let duration = Duration::try_from_secs_f64(seconds).ok();
    duration
        .filter(|duration| (TIMEOUT_MIN..=TIMEOUT_MAX).contains(duration))
        .ok_or_else(|| format!("give {} to {} seconds", TIMEOUT_MIN.as_secs_f64(), TIMEOUT_MAX.as_secs()))
}

fn show_seconds(duration: Duration) -> String {
    duration.as_secs_f64().to_string()
}

fn allocation(text: &str) -> Result<Allocation, String> {
    match text {
        "contiguous" => Ok(Allocation::Contiguous),
        "sticky" => Ok(Allocation::Sticky),
        _ => Err("give contiguous or sticky".into()),
    }
}

fn most(text: &str) -> Result<u32, String> {
    number(text)
        .and_then(|max| if max > SHARDS_MAX { Err(format!("it is at most {SHARDS_MAX}")) } else { Ok(max) })
}

fn connections(text: &str) -> Result<usize, String> {
    number(text).and_then(|max| if max == 0 { Err("it must be at least 1".into()) } else { Ok(max) })
}

fn secret_key(text: &str) -> Result<Secret, String> {
    let key = key_or_file(text, baton_zmq::check_secret_key)?;
    if !key.is_empty() {
        baton_zmq::check_secret_key(&key)?;
    }
    Ok(Secret::new(key))
}

/// A key may itself begin with the sign of a file.
fn key_or_file(text: &str, check: fn(&str) -> Result<(), String>) -> Result<String, String> {
    let first = text.split_whitespace().next().unwrap_or_default();
    if check(first).is_ok() { Ok(text.to_owned()) } else { text_or_file(text) }
}

fn client_keys(text: &str) -> Result<Vec<String>, String> {
    let keys: Vec<String> =
        key_or_file(text, baton_zmq::check_public_key)?.split_whitespace().map(str::to_owned).collect();
    keys.iter().try_for_each(|key| baton_zmq::check_public_key(key))?;
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn listening(values: &[&str]) -> Result<String, String> {
        let mut settings = Settings::default();
        for value in values {
            settings.set("test", "shards_listen", value).map_err(|error| error.to_string())?;
        }
        Ok((LISTEN.show)(&settings))
    }

    #[test]
    fn the_socket_is_off_until_a_part_of_its_place_is_given() {
        assert!(Settings::default().shards.listening().is_none());
        assert_eq!(listening(&["5556"]).unwrap(), "127.0.0.1:5556");
        assert_eq!(listening(&["tcp://0.0.0.0"]).unwrap(), "0.0.0.0:5555");
        assert_eq!(listening(&["tcp://0.0.0.0", "7000"]).unwrap(), "0.0.0.0:7000");
        assert_eq!(listening(&["7000", "tcp://10.0.0.1"]).unwrap(), "10.0.0.1:7000");
        assert_eq!(listening(&["tcp://[::1]:7"]).unwrap(), "[::1]:7");
        assert_eq!(listening(&["h:1", "off"]).unwrap(), "off");
        for wrong in ["", "h:x", ":1", "99999", "ipc:///tmp/x", "a b:1"] {
            assert!(listening(&[wrong]).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_secret_key_is_checked_and_not_shown() {
        let mut settings = Settings::default();
        let refusal = settings.set("test", "shards_curve_secret_key", "too-short").unwrap_err().to_string();
        assert!(!refusal.contains("too-short") && refusal.contains("Z85"), "{refusal}");
    }

    #[test]
    fn a_key_that_begins_like_a_file_is_a_key() {
        let mut settings = Settings::default();
        let key = "@rq:rM>}U?@Lns47E1%kR.o@naFcmmsL/@{H8]yf";
        settings.set("test", "shards_curve_secret_key", key).unwrap();
        settings.set("test", "shards_curve_clients", &format!("{key} {key}")).unwrap();
        assert_eq!(settings.shards.curve_clients, [key, key]);
        let refusal = settings.set("test", "shards_curve_clients", "@/no/such/file").unwrap_err().to_string();
        assert!(refusal.contains("cannot read"), "{refusal}");
    }
}
