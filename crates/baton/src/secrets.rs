//! Hides secrets in flags from the list of processes.
//!
//! Any user of a machine can read the arguments of its processes, but only the owner can read their environment. So a
//! server with a secret in its flags executes its program again, in the same process, with the secret in the
//! environment. Start at [`hide_from_process_list`].

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use baton_config::{Setting, TABLE, is_secret};

use crate::commands::serve;

/// Replaces this process with one without secrets in its arguments. Returns if there are none, or on a failure.
pub fn hide_from_process_list(args: &serve::Args) {
    let secrets: Vec<(&Setting, &str)> = args.flags.iter().filter_map(secret).collect();
    if secrets.is_empty() {
        return;
    }
    let flags: Vec<String> = secrets.iter().map(|(setting, _)| format!("--{}", setting.flag)).collect();
    let mut given = std::env::args_os();
    let name = given.next().unwrap_or_else(|| OsString::from("baton"));
    let Ok(program) = std::env::current_exe() else { return warn(&flags, "this program has no path") };
    let environment = secrets.iter().map(|(setting, value)| (setting.env, value));
    let error = Command::new(program).arg0(name).args(without(given, &flags)).envs(environment).exec();
    warn(&flags, &error.to_string());
}

fn warn(flags: &[String], problem: &str) {
    let flags = flags.join(" ");
    eprintln!("warning: {flags} can be read in the list of processes ({problem}); give @FILE instead");
}

/// A flag with a secret value: not a file name, and no address without a password.
fn secret((name, value): &(String, String)) -> Option<(&'static Setting, &str)> {
    let is_plain = value.starts_with('@') || (name == "store" && !has_password(value));
    let setting = TABLE.iter().find(|setting| setting.name == name)?;
    (is_secret(name) && !is_plain).then_some((setting, value))
}

fn has_password(address: &str) -> bool {
    let authority = address.split_once("://").map_or("", |(_, rest)| rest);
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    user.contains(':') || address.contains("password")
}

/// The arguments without these flags and their values.
fn without(arguments: impl Iterator<Item = OsString>, flags: &[String]) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        if flags.iter().any(|flag| text == *flag) {
            arguments.next();
        } else if !flags.iter().any(|flag| text.strip_prefix(flag).is_some_and(|rest| rest.starts_with('=')))
        {
            kept.push(argument);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_contains_a_secret_is_hidden() {
        let is_secret = |name: &str, value: &str| secret(&(name.into(), value.into())).is_some();
        assert!(is_secret("store", "postgres://u:p@h/d"));
        assert!(is_secret("store", "host=h password=p"));
        assert!(!is_secret("store", "postgres://u@h:5432/d"));
        assert!(!is_secret("store", "@store.url"));
        assert!(is_secret("jwt_secret", "hush"));
        assert!(!is_secret("jwt_secret", "@jwt.secret"));
        assert!(!is_secret("listen", "127.0.0.1:0"));
    }

    #[test]
    fn a_flag_goes_with_its_value() {
        let given = ["serve", "--store", "s", "--listen", "h:1", "--jwt-secret=x", "--jwt-secrets", "y"];
        let flags = ["--store".into(), "--jwt-secret".into()];
        let kept = without(given.into_iter().map(OsString::from), &flags);
        assert_eq!(kept, ["serve", "--listen", "h:1", "--jwt-secrets", "y"]);
    }
}
