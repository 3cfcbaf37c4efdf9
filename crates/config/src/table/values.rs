//! How a text becomes the value of a setting, or is refused with what to write instead; and how values are shown.

use std::str::FromStr;
use std::time::Duration;

use baton_types::Secret;

use super::security::secret;
use crate::settings::{EMBEDDED, SubscriptionMode};

pub(super) fn set<T>(
    field: &mut T,
    text: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<(), String> {
    *field = parse(text)?;
    Ok(())
}

pub(super) fn filled(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("it must not be empty".into()) } else { Ok(text.into()) }
}

/// The embedded store, or the address of a PostgreSQL as a URL or as `host=… dbname=…`, or the file that holds it.
pub(super) fn store_address(text: &str) -> Result<Secret, String> {
    let address = secret(text)?;
    let text = address.expose();
    let is_url = ["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme));
    let has_pairs = ["host=", "hostaddr=", "user=", "dbname=", "port="].iter().any(|key| text.contains(key));
    if text == EMBEDDED || is_url || has_pairs {
        return Ok(address);
    }
    Err(format!("{EMBEDDED}, postgres://user@host/database or @FILE is wanted"))
}

/// A name that PostgreSQL keeps as it is.
pub(super) fn schema_name(text: &str) -> Result<String, String> {
    match filled(text)? {
        long if long.len() > 63 => Err("a schema name has at most 63 bytes".into()),
        reserved if reserved.starts_with("pg_") => {
            Err("names that begin with pg_ belong to PostgreSQL".into())
        }
        name => Ok(name),
    }
}

pub(super) fn host_and_port(text: &str) -> Result<String, String> {
    if let Some((scheme, _)) = text.split_once("://") {
        return Err(format!("give HOST:PORT without {scheme}://, for instance 127.0.0.1:6632"));
    }
    let port =
        text.rsplit_once(':').and_then(|(host, port)| port.parse::<u16>().ok().filter(|_| !host.is_empty()));
    port.map(|_| text.to_owned()).ok_or_else(|| "give HOST:PORT, for instance 127.0.0.1:6632".into())
}

pub(super) fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "give a whole number that is not negative".into())
}

pub(super) fn positive<T: FromStr + PartialOrd + From<u8>>(text: &str) -> Result<T, String> {
    let value: T = number(text)?;
    if value < T::from(1) { Err("it must be at least 1".into()) } else { Ok(value) }
}

pub(super) fn batch_size(text: &str) -> Result<u32, String> {
    let max = baton_types::limits::POP_BATCH_MAX;
    positive(text)
        .and_then(|size: u32| if size > max { Err(format!("it is at most {max}")) } else { Ok(size) })
}

pub(super) fn positive_millis(text: &str) -> Result<Duration, String> {
    let millis: u64 = positive(text).map_err(|problem| format!("{problem} (milliseconds)"))?;
    Ok(Duration::from_millis(millis))
}

pub(super) fn factor(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|factor: &f64| factor.is_finite() && *factor >= 1.0)
        .ok_or_else(|| "give a number that is at least 1".into())
}

pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let found = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (digits, shift) = found.unwrap_or((text, 0));
    let count: u64 =
        digits.trim_end().parse().map_err(|_| "give bytes, as 268435456 or 256MiB".to_owned())?;
    count.checked_mul(1 << shift).ok_or_else(|| "it is too large".into())
}

pub(super) fn subscription_mode(text: &str) -> Result<SubscriptionMode, String> {
    match text {
        "" | "all" | "from_beginning" => Ok(SubscriptionMode::All),
        "new" | "new-only" => Ok(SubscriptionMode::New),
        _ => Err("give all or new".into()),
    }
}

pub(super) fn show_millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

pub(super) fn show_bytes(bytes: u64) -> String {
    match bytes {
        0 => "0".into(),
        _ if bytes.is_multiple_of(1 << 30) => format!("{}GiB", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}MiB", bytes >> 20),
        _ => bytes.to_string(),
    }
}
