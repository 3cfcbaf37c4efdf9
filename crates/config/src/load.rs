//! Where settings come from: a file, then the environment, then flags.
//!
//! Always: each source goes through [`Settings::set`] or the same table, so an error names the place and the name that was
//! used there; a value that is a secret is not in it. Start at [`Settings::load`].

use std::path::{Path, PathBuf};

use baton_types::Secret;

use crate::foreign;
use crate::setting::{Setting, ShownSetting, is_secret, shown};
use crate::settings::{EMBEDDED, Settings};
use crate::table::TABLE;

/// What the environment names of settings begin with.
pub const PREFIX: &str = "BATON_";

/// Environment names with our prefix that are no settings of the server.
const NOT_SETTINGS: &[&str] = &["BATON_CONFIG", "BATON_URL", "BATON_TOKEN", "BATON_CA", "BATON_UPDATE_DOCS"];
/// Names that tests and benchmarks use begin with one of these.
const NOT_SETTINGS_PREFIXES: &[&str] = &["BATON_TEST_", "BATON_BENCH_", "BATON_CLIENT_"];

/// A setting that cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No setting has this name.
    #[error("{place}: there is no setting {name:?}; see docs/settings.md or `baton serve --help`")]
    Unknown {
        /// Where it was given.
        place: String,
        /// What was given.
        name: String,
    },
    /// The value does not fit.
    #[error("{place}: {name} cannot be {value:?}: {problem}")]
    Malformed {
        /// Where it was given.
        place: String,
        /// The name used there.
        name: String,
        /// The value given.
        value: String,
        /// What would fit.
        problem: String,
    },
    /// Settings that do not fit together.
    #[error("{0}")]
    Together(String),
    /// The file cannot be read.
    #[error("cannot read the settings in {}: {problem}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        problem: String,
    },
}

impl Settings {
    /// The settings of a file, then of the environment, then of flags (setting names and values).
    pub fn load<E, F>(file: Option<&Path>, environment: E, flags: F) -> Result<Self, Error>
    where
        E: IntoIterator<Item = (String, String)>,
        F: IntoIterator<Item = (String, String)>,
    {
        let mut settings = Self::default();
        if let Some(path) = file {
            let text = std::fs::read_to_string(path)
                .map_err(|e| Error::File { path: path.into(), problem: e.to_string() })?;
            settings.read_file(path, &text)?;
        }
        settings.read_environment(environment)?;
        for (name, value) in flags {
            settings.set("flag", &name, &value)?;
        }
        settings.check_cluster().map_err(Error::Together)?;
        settings.check_nodes().map_err(Error::Together)?;
        settings.name_itself();
        Ok(settings)
    }

    /// Changes the setting called `name`; `place` tells the reader of an error where it was given.
    pub fn set(&mut self, place: &str, name: &str, value: &str) -> Result<(), Error> {
        let Some(setting) = TABLE.iter().find(|setting| setting.name == name) else {
            return Err(Error::Unknown { place: place.into(), name: name.into() });
        };
        self.apply(setting, place, name, value)
    }

    fn apply(&mut self, setting: &Setting, place: &str, name: &str, value: &str) -> Result<(), Error> {
        (setting.set)(self, value.trim()).map_err(|problem| Error::Malformed {
            place: place.into(),
            name: name.into(),
            value: shown(setting.name, value),
            problem,
        })
    }

    fn read_file(&mut self, path: &Path, text: &str) -> Result<(), Error> {
        let table: toml::Table = text
            .parse()
            // Only the message: the text around it may hold a secret.
            .map_err(|e: toml::de::Error| Error::File { path: path.into(), problem: place_of(text, &e) })?;
        self.read_table(&path.display().to_string(), "", &table)
    }

    /// A table inside the file lengthens the names of what it holds: `[pop_wait] max_interval_ms` is
    /// `pop_wait_max_interval_ms`.
    fn read_table(&mut self, place: &str, prefix: &str, table: &toml::Table) -> Result<(), Error> {
        for (key, value) in table {
            let name = format!("{prefix}{key}");
            match value {
                toml::Value::Table(inner) => self.read_table(place, &format!("{name}_"), inner)?,
                toml::Value::String(text) => self.set(place, &name, text)?,
                toml::Value::Integer(number) => self.set(place, &name, &number.to_string())?,
                toml::Value::Float(number) => self.set(place, &name, &number.to_string())?,
                toml::Value::Boolean(flag) => self.set(place, &name, &flag.to_string())?,
                toml::Value::Datetime(moment) => self.set(place, &name, &moment.to_string())?,
                toml::Value::Array(list) => self.set(place, &name, &joined(list))?,
            }
        }
        Ok(())
    }

    /// Aliases first, so that our own names win.
    fn read_environment(
        &mut self,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(), Error> {
        let mut own = Vec::new();
        for (name, value) in environment {
            if name.starts_with(PREFIX) {
                own.push((name, value));
            } else if let Some(setting) =
                TABLE.iter().find(|setting| setting.aliases.contains(&name.as_str()))
            {
                self.apply(setting, "environment", &name, &value)?;
            } else if let Some(foreign) = foreign::find(&name) {
                self.foreign.push((name, foreign));
            }
        }
        for (name, value) in own {
            let ours = NOT_SETTINGS.contains(&name.as_str())
                || NOT_SETTINGS_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
            match TABLE.iter().find(|setting| setting.env == name) {
                Some(setting) => self.apply(setting, "environment", &name, &value)?,
                None if ours => {}
                None if is_service_link(&name, &value) => self.ignored.push(name),
                None => return Err(Error::Unknown { place: "environment".into(), name }),
            }
        }
        Ok(())
    }

    /// Every setting with its value here and its default, secrets hidden.
    pub fn shown(&self) -> Vec<ShownSetting> {
        let defaults = Self::default();
        let row = |setting: &Setting| {
            let shown = |settings: &Self| match setting.show(settings) {
                value if !is_secret(setting.name) || value == EMBEDDED => value,
                _ => Secret::HIDDEN.into(),
            };
            ShownSetting {
                name: setting.name,
                value: shown(self),
                default: shown(&defaults),
                help: setting.help,
            }
        };
        TABLE.iter().map(row).collect()
    }
}

/// Whether Kubernetes injects this variable into pods beside a Service whose name begins with `baton`, as
/// `BATON_SERVICE_HOST`, `BATON_PORT=tcp://10.0.0.1:6632` or `BATON_PORT_6632_TCP_ADDR`.
fn is_service_link(name: &str, value: &str) -> bool {
    const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
    let name = format!("_{}", name.strip_prefix(PREFIX).unwrap_or_default());
    let is_url =
        || PROTOCOLS.iter().any(|scheme| value.starts_with(&format!("{}://", scheme.to_lowercase())));
    if name.ends_with("_SERVICE_HOST") || name.ends_with("_SERVICE_PORT") || name.contains("_SERVICE_PORT_") {
        return true;
    }
    if name.ends_with("_PORT") && is_url() {
        return true;
    }
    let Some((_, number_and_rest)) = name.split_once("_PORT_") else { return false };
    let mut parts = number_and_rest.split('_');
    let is_number = parts.next().is_some_and(|number| number.parse::<u16>().is_ok());
    let is_protocol = parts.next().is_some_and(|protocol| PROTOCOLS.contains(&protocol));
    is_number && is_protocol && matches!(parts.next(), None | Some("PROTO" | "PORT" | "ADDR"))
}

/// What is wrong with a file, and in which line.
fn place_of(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    format!("line {}: {}", before.matches('\n').count() + 1, error.message())
}

/// A list of texts as it would stand in the environment.
fn joined(list: &[toml::Value]) -> String {
    list.iter().map(|value| value.as_str().unwrap_or("?")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    fn load(file: &str, environment: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Settings, Error> {
        let mut settings = Settings::default();
        settings.read_file(Path::new("baton.toml"), file)?;
        settings.read_environment(pairs(environment))?;
        for (name, value) in flags {
            settings.set("flag", name, value)?;
        }
        Ok(settings)
    }

    fn refusal(file: &str, environment: &[(&str, &str)], flags: &[(&str, &str)]) -> String {
        load(file, environment, flags).unwrap_err().to_string()
    }

    #[test]
    fn a_later_source_wins() {
        let file = "listen = '127.0.0.1:1'\nconnections_max = 5\n[pop_wait]\nmax_interval_ms = 700\n";
        let settings = load(
            file,
            &[("BATON_LISTEN", "127.0.0.1:2"), ("BATON_CONNECTIONS_MAX", "6")],
            &[("listen", "h:3")],
        );
        let settings = settings.unwrap();
        assert_eq!((settings.listen.as_str(), settings.connections_max), ("h:3", 6));
        assert_eq!(settings.pop_wait_max_interval, Duration::from_millis(700));
    }

    #[test]
    fn names_of_older_servers_are_understood_and_ours_win() {
        let alias = ("POP_WAIT_BASE_INTERVAL_MS", "40");
        assert_eq!(load("", &[alias], &[]).unwrap().pop_wait_initial_interval, Duration::from_millis(40));
        let both = [("BATON_POP_WAIT_INITIAL_INTERVAL_MS", "50"), alias, ("PORT", "x"), ("HOST", "y")];
        assert_eq!(load("", &both, &[]).unwrap().pop_wait_initial_interval, Duration::from_millis(50));
    }

    #[test]
    fn names_of_older_servers_that_mean_nothing_here_are_told_with_what_to_set() {
        let old =
            [("PG_HOST", "db"), ("PORT", "6632"), ("QUEEN_VEGAS_MIN_LIMIT", "3"), ("QUEEN_SERVER_URL", "x")];
        let told = load("", &old, &[]).unwrap().foreign;
        let told: Vec<_> = told.iter().map(|(name, foreign)| (name.as_str(), foreign.instead)).collect();
        assert_eq!(
            told.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            ["PG_HOST", "PORT", "QUEEN_VEGAS_MIN_LIMIT"]
        );
        assert!(told[0].1.contains("`store`") && told[1].1.contains("`listen`"), "{told:?}");
        assert!(
            load("", &[("QUEEN_UDP_PEERS", "")], &[]).unwrap().foreign.is_empty(),
            "an alias is a setting"
        );
    }

    #[test]
    fn an_address_that_is_a_url_is_refused_with_the_right_form() {
        let refused = refusal("", &[], &[("peers", "http://10.0.0.2:6632")]);
        assert!(refused.contains("without http://") && refused.contains("datagrams"), "{refused}");
        assert!(refusal("", &[], &[("listen", "http://127.0.0.1:6632")]).contains("without http://"));
        assert!(refusal("", &[], &[("gossip_listen", "udp://0.0.0.0:6634")]).contains("HOST:PORT"));
    }

    #[test]
    fn what_is_unknown_or_malformed_is_named() {
        assert!(refusal("lisen = 'x:1'", &[], &[]).contains("\"lisen\""));
        assert!(refusal("[pop_wait]\nspeed = 1", &[], &[]).contains("\"pop_wait_speed\""));
        assert!(refusal("x = [", &[], &[]).contains("baton.toml"));
        assert!(refusal("", &[("BATON_LISEN", "x:1")], &[]).contains("\"BATON_LISEN\""));
        assert!(refusal("", &[("POP_WAIT_MAX_INTERVAL_MS", "1s")], &[]).contains("POP_WAIT_MAX_INTERVAL_MS"));
        assert!(refusal("", &[], &[("prot", "1")]).contains("\"prot\""));
        let malformed = [
            ("listen", "6632"),
            ("listen", ":1"),
            ("listen", "h:99999"),
            ("data", ""),
            ("store", "mysql://h/d"),
            ("store_schema", "pg_mine"),
            ("spool_max", "much"),
            ("min_free_disk", "1 TB"),
            ("min_free_disk", "99999999999999GiB"),
            ("connections_max", "0"),
            ("connections_max", "-1"),
            ("pop_wait_backoff_multiplier", "0.5"),
            ("pop_wait_backoff_multiplier", "NaN"),
            ("default_batch_size", "10001"),
            ("default_subscription_mode", "old"),
            ("default_timeout_ms", "1.5"),
        ];
        for (name, value) in malformed {
            assert!(refusal("", &[], &[(name, value)]).contains(name), "{name} {value}");
        }
    }

    #[test]
    fn the_settings_of_the_coordinator_go_by_their_old_names_too() {
        let old = [
            ("QUEEN_COORDINATOR_ENABLED", "true"),
            ("QUEEN_UDP_PEERS", "queen-1:6634, queen-2:6634"),
            ("QUEEN_UDP_NOTIFY_PORT", "6633"),
            ("QUEEN_COORDINATOR_FORWARD_THRESHOLD", "0.2"),
            ("QUEEN_COORDINATOR_TIMEOUT_MS", "4000"),
            ("QUEEN_AFFINITY_TTL_MS", "1000"),
            ("QUEEN_AFFINITY_MIGRATE_THRESHOLD", "0.5"),
            ("QUEEN_AFFINITY_BREAK_THRESHOLD", "0.8"),
            ("QUEEN_AFFINITY_MIGRATE_MIN_IMPROVEMENT", "0.1"),
            ("QUEEN_QUEUE_AFFINITY_THRESHOLD", "3"),
        ];
        let settings = Settings { store: Secret::new("postgres://h/d"), ..load("", &old, &[]).unwrap() };
        let options = settings.cluster_options().unwrap();
        assert_eq!(options.peers, ["queen-1:6634", "queen-2:6634"]);
        assert_eq!((options.listen.as_str(), options.routes), ("0.0.0.0:6633", true));
        assert_eq!((options.timeout, options.policy.queue_affinity_threshold), (Duration::from_secs(4), 3));
        let thresholds = options.policy.thresholds;
        assert_eq!((thresholds.forward, thresholds.migrate, thresholds.break_at), (0.2, 0.5, 0.8));
        assert_eq!((thresholds.min_improvement, thresholds.ttl), (0.1, Duration::from_secs(1)));
        assert!(Settings::default().cluster_options().is_none(), "a server is alone unless told");
        let refused = Settings::load(None, pairs(&[("BATON_PEERS", "a:1")]), pairs(&[]));
        assert!(refused.unwrap_err().to_string().contains("postgres"));
        let named = Settings::load(None, pairs(&[]), pairs(&[("peers", "a:1"), ("store", "postgres://h/d")]));
        assert_ne!(named.unwrap().node_id, Settings::default().node_id);
        let own = [("peers", "a:1"), ("store", "postgres://h/d"), ("node_id", "baton-1")];
        assert_eq!(Settings::load(None, pairs(&[]), pairs(&own)).unwrap().node_id, "baton-1");
    }

    #[test]
    fn variables_that_kubernetes_injects_for_a_service_are_ignored() {
        let injected = [
            ("BATON_SERVICE_HOST", "10.0.0.7"),
            ("BATON_SERVICE_PORT", "6632"),
            ("BATON_SERVICE_PORT_HTTP", "6632"),
            ("BATON_PORT", "tcp://10.0.0.7:6632"),
            ("BATON_PORT_6632_TCP", "tcp://10.0.0.7:6632"),
            ("BATON_PORT_6632_TCP_PROTO", "tcp"),
            ("BATON_PORT_6632_TCP_PORT", "6632"),
            ("BATON_PORT_6634_UDP_ADDR", "10.0.0.7"),
            ("BATON_HEADLESS_PORT", "tcp://10.0.0.7:6632"),
            ("BATON_HEADLESS_PORT_6632_TCP_ADDR", "10.0.0.7"),
        ];
        let settings = load("", &injected, &[]).unwrap();
        assert_eq!(settings.ignored, injected.map(|(name, _)| name));
        assert_eq!(Settings { ignored: Vec::new(), ..settings }, Settings::default());
        for (name, value) in [
            ("BATON_PORT", "6632"),
            ("BATON_LISTEN_PORT", "6632"),
            ("BATON_PORT_X_TCP", "x"),
            ("BATON_PORT_1_TCP_X", "x"),
        ] {
            assert!(refusal("", &[(name, value)], &[]).contains(name), "{name}");
        }
    }

    #[test]
    fn the_address_of_the_store_is_never_printed_and_may_stand_in_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "postgres://u:hush@h/d\n").unwrap();
        let given = format!("@{}", file.path().display());
        let settings = load("", &[], &[("store", &given)]).unwrap();
        assert_eq!(settings.store.expose(), "postgres://u:hush@h/d");
        assert!(!format!("{settings:?}").contains("hush"));
        assert!(!refusal("", &[], &[("store", "mysql://u:hush@h/d")]).contains("hush"));
    }

    #[test]
    fn people_who_look_see_every_setting_and_no_secret() {
        let secrets = [
            ("store", "postgres://u:hush@h/d"),
            ("jwt_secret", "hush-hush-hush-hush-hush-hush-hush"),
            ("listen", "127.0.0.1:7"),
        ];
        let shown = load("", &[], &secrets).unwrap().shown();
        assert_eq!(shown.len(), TABLE.len());
        let value = |name: &str| shown.iter().find(|row| row.name == name).map(|row| row.value.as_str());
        assert_eq!([value("listen"), value("node_id")], [Some("127.0.0.1:7"), Some("baton-1")]);
        assert_eq!([value("store"), value("jwt_secret")], [Some(Secret::HIDDEN); 2]);
        assert!(shown.iter().all(|row| !row.value.contains("hush")), "{shown:?}");
    }

    #[test]
    fn names_that_are_no_settings_are_left_alone() {
        assert_eq!(
            load("", &[("BATON_URL", "x"), ("BATON_TEST_SEED", "7")], &[]).unwrap(),
            Settings::default()
        );
    }

    #[test]
    fn every_default_can_be_written_back() {
        let defaults = Settings::default();
        let mut again = Settings { log: "other".into(), ..Settings::default() };
        for setting in TABLE {
            again.set("test", setting.name, &setting.show(&defaults)).unwrap();
            assert_eq!(setting.env, format!("{PREFIX}{}", setting.name.to_uppercase()));
            assert_eq!(setting.flag, setting.name.replace('_', "-"));
        }
        again.cluster.named = false;
        assert_eq!(again, defaults);
    }

    proptest! {
        #[test]
        fn no_text_makes_a_setting_panic(place in 0..TABLE.len(), text in any::<String>()) {
            let _ = Settings::default().set("test", TABLE[place].name, &text);
        }
    }
}
