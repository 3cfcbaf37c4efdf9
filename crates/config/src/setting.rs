//! One thing that can be set: its names, its help, and how a text becomes its value.
//!
//! Start at [`Setting`].

use baton_types::Secret;

use crate::settings::Settings;

/// Settings whose values are secrets.
const SECRETS: &[&str] =
    &["store", "jwt_secret", "encryption_keys", "gossip_secret", "shards_curve_secret_key"];

/// One thing that can be set.
pub struct Setting {
    /// Its name in a file.
    pub name: &'static str,
    /// Its name on the command line, without the dashes: the same with `-` for `_`.
    pub flag: &'static str,
    /// Its name in the environment.
    pub env: &'static str,
    /// Other names in the environment, which documents of older servers use.
    pub aliases: &'static [&'static str],
    /// What its value is, for the help: `HOST:PORT`, `MS`.
    pub value: &'static str,
    /// What it is for.
    pub help: &'static str,
    /// Takes a value over, or says what would fit.
    pub(crate) set: fn(&mut Settings, &str) -> Result<(), String>,
    /// Shows it.
    pub(crate) show: fn(&Settings) -> String,
}

impl Setting {
    /// Its value in `settings`, as it would be written.
    pub fn show(&self, settings: &Settings) -> String {
        (self.show)(settings)
    }
}

impl std::fmt::Debug for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setting").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A setting as a person may see it.
#[derive(Clone, Debug)]
pub struct ShownSetting {
    /// Its name.
    pub name: &'static str,
    /// Its value here.
    pub value: String,
    /// Its value where nothing is set.
    pub default: String,
    /// What it is for.
    pub help: &'static str,
}

pub(crate) const fn setting(
    [name, flag, env]: [&'static str; 3],
    aliases: &'static [&'static str],
    value: &'static str,
    help: &'static str,
    set: fn(&mut Settings, &str) -> Result<(), String>,
    show: fn(&Settings) -> String,
) -> Setting {
    Setting { name, flag, env, aliases, value, help, set, show }
}

/// The value of a setting as an error may show it.
pub(crate) fn shown(name: &str, value: &str) -> String {
    if is_secret(name) { Secret::HIDDEN.into() } else { value.into() }
}

/// Whether the value of this setting is, or may contain, a secret.
pub fn is_secret(name: &str) -> bool {
    SECRETS.contains(&name)
}
