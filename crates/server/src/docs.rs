//! The reference pages, printed from the tables, so that they cannot say anything else than the code.
//!
//! A test compares them with the files in `docs/`; `BATON_UPDATE_DOCS=1 cargo test -p baton-server docs` writes
//! them anew.

use std::fmt::Write;

use baton_auth::Access;
use baton_config::Settings;

use crate::metrics::{FAMILIES, Type};
use crate::openapi::known;
use crate::routes::ROUTES;
use crate::routes::unsupported::UNSUPPORTED;
use crate::{error, ignored};

const NOTE: &str =
    "Printed from the code; change it there and run `BATON_UPDATE_DOCS=1 cargo test -p baton-server docs`.";

/// `docs/settings.md`.
pub fn settings() -> String {
    let mut page = format!(
        "# Settings\n\n{NOTE}\n\nA setting is read from the file given with `--config` (TOML), then from the \
         environment, then from flags of `baton serve`; the later one wins. In the file a table lengthens the names \
         of what it holds: `[pop_wait]` with `max_interval_ms` is `pop_wait_max_interval_ms`. A name that is not \
         known or a value that does not fit stops the start with an error that names it.\n\n\
         | setting | flag | environment | default | what it is for |\n|---|---|---|---|---|\n"
    );
    let defaults = Settings::default();
    for setting in baton_config::TABLE {
        let names: Vec<_> =
            std::iter::once(&setting.env).chain(setting.aliases).map(|name| format!("`{name}`")).collect();
        line(
            &mut page,
            &[
                &format!("`{}`", setting.name),
                &format!("`--{} {}`", setting.flag, setting.value),
                &names.join(", "),
                &default(&setting.show(&defaults)),
                setting.help,
            ],
        );
    }
    page
}

fn default(shown: &str) -> String {
    if shown.is_empty() { "none".into() } else { format!("`{shown}`") }
}

/// `docs/routes.md`.
pub fn routes() -> String {
    let own: Vec<_> = known::OWN.iter().map(|path| format!("`{path}`")).collect();
    let (own, name_max) = (own.join(", "), ignored::NAME_BYTES_MAX);
    let mut page = format!(
        "# Routes\n\n{NOTE}\n\nA segment that begins with a colon stands for a percent-encoded value, one \
         that begins with a star for the rest of the path. The access level counts when authentication is \
         on ([security](security.md)): public, read, push, write or admin.\n\n\
         Baton's own routes, whose paths begin with {own}, refuse a query parameter or a member of the body that \
         they do not know with 400 and name the nearest one. The other routes are called by published queue clients: \
         they do what they know, and the answer's header `Baton-Ignored` lists the rest, for instance \
         `Baton-Ignored: wiat, dely`. It holds at most eight names, percent-encoded and cut after {name_max} bytes; `...` \
         stands for more. A malformed value (`batch=abc`) is 400 everywhere. Every parameter and \
         member that is known stands in `/api/openapi.json`.\n\n\
         | method | path | access | what it does |\n|---|---|---|---|\n"
    );
    for route in ROUTES {
        let access = match route.access {
            Access::Public => "public",
            Access::Read => "read",
            Access::Push => "push",
            Access::Write => "write",
            Access::Admin => "admin",
        };
        line(&mut page, &[route.method.as_str(), &format!("`{}`", route.path), access, route.help]);
    }
    page
}

/// `docs/errors.md`.
pub fn errors() -> String {
    let mut page = format!(
        "# Errors\n\n{NOTE}\n\nAn error is `{{\"error\": text, \"code\": code}}`; a refused pop also has \
         `\"success\": false, \"messages\": []`. 429 and 503 carry `Retry-After` in seconds when waiting helps.\n\n\
         | status | code | what to do |\n|---|---|---|\n"
    );
    for row in error::TABLE {
        line(&mut page, &[row.status.as_str(), &format!("`{}`", row.code), row.help]);
    }
    page
}

/// The table of what is not supported, in `docs/coming-from-queen.md`.
pub fn unsupported() -> String {
    let mut table = String::from("| route of Queen | what it is for | instead |\n|---|---|---|\n");
    for row in UNSUPPORTED {
        line(&mut table, &[&format!("`{}`", row.path), row.what, row.instead]);
    }
    table
}

/// The names of settings in the environment of Queen's servers, in `docs/coming-from-queen.md`.
pub fn foreign_settings() -> String {
    let mut table = String::from("| variable of Queen | setting of Baton |\n|---|---|\n");
    for foreign in baton_config::FOREIGN {
        line(&mut table, &[&format!("`{}`", foreign.name), foreign.instead]);
    }
    table
}

/// `docs/metrics.md`.
pub fn metrics() -> String {
    let mut page = format!(
        "# Metrics\n\n{NOTE}\n\n`GET /metrics/prometheus` answers in the text format of Prometheus; a dashboard for \
         Grafana is in [grafana/baton.json](grafana/baton.json). What is in queues and groups is counted for a \
         scrape by a walk over all partitions, which is done at most a twentieth of the time: with very many \
         partitions these numbers are up to ten seconds old.\n\n\
         | family | type | labels | what it tells |\n|---|---|---|---|\n"
    );
    for family in FAMILIES {
        let kind = match family.kind {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Histogram => "histogram",
        };
        line(&mut page, &[&format!("`{}`", family.name), kind, family.labels, family.help]);
    }
    page
}

fn line(page: &mut String, cells: &[&str]) {
    let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(page, "| {} |", cells.join(" | "));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file: &str, expected: &str) {
        let path = format!("{}/../../docs/{file}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("BATON_UPDATE_DOCS").is_some() {
            std::fs::write(&path, expected).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == expected, "docs/{file} is not what the code says; run with BATON_UPDATE_DOCS=1");
    }

    #[test]
    fn the_settings_page_says_what_the_code_says() {
        check("settings.md", &settings());
    }

    #[test]
    fn the_routes_page_says_what_the_code_says() {
        check("routes.md", &routes());
    }

    #[test]
    fn the_errors_page_says_what_the_code_says() {
        check("errors.md", &errors());
    }

    #[test]
    fn the_page_for_those_who_come_from_queen_has_the_tables_of_the_code() {
        let path = format!("{}/../../docs/coming-from-queen.md", env!("CARGO_MANIFEST_DIR"));
        let page = std::fs::read_to_string(&path).unwrap();
        for table in [unsupported(), foreign_settings()] {
            assert!(page.contains(&table), "docs/coming-from-queen.md does not contain\n{table}");
        }
    }

    #[test]
    fn the_metrics_page_says_what_the_code_says() {
        check("metrics.md", &metrics());
    }
}
