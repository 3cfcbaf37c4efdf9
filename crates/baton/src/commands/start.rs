//! Parsers for the start of a group and for waiting times.

use std::time::Duration;

use baton_client::{Subscription, Timestamp};

/// Parses `new`, `all` or a time.
pub fn subscription(text: &str) -> Result<Subscription, String> {
    match text {
        "all" => Ok(Subscription::All),
        "new" => Ok(Subscription::New),
        _ => match text.parse::<Timestamp>() {
            Ok(moment) => Ok(Subscription::From(moment)),
            Err(_) => Err("give `new`, `all`, or a time such as 2026-11-15T18:34:07Z".into()),
        },
    }
}

/// Parses seconds, with or without a fraction.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "give seconds, such as 10 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "give a positive number of seconds".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_a_word_or_a_time() {
        assert_eq!(subscription("new"), Ok(Subscription::New));
        assert_eq!(subscription("all"), Ok(Subscription::All));
        assert!(matches!(subscription("2026-11-15T18:34:07Z"), Ok(Subscription::From(_))));
        assert!(subscription("yesterday").is_err());
    }

    #[test]
    fn seconds_may_have_fractions_but_no_sign() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(seconds("-1").is_err());
        assert!(seconds("soon").is_err());
    }
}
