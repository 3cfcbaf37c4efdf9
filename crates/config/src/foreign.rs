//! Variables of the environment that Queen's servers read and this one does not, each with what to set instead.
//!
//! A server that is started in place of Queen would ignore them silently and, say, keep messages in a directory instead of
//! the PostgreSQL that they name. So the server warns of each. Those that mean the same here are aliases of settings.
//! Start at [`find`].

/// Variables that are not read.
#[derive(Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Their name; a star stands for the rest.
    pub name: &'static str,
    /// What to set instead.
    pub instead: &'static str,
}

const fn foreign(name: &'static str, instead: &'static str) -> Foreign {
    Foreign { name, instead }
}

/// All of them. The first that fits counts.
pub const FOREIGN: &[Foreign] = &[
    foreign("PORT", "`listen` (`BATON_LISTEN`): host and port together"),
    foreign("HOST", "`listen` (`BATON_LISTEN`): host and port together"),
    foreign("PG_*", "`store` (`BATON_STORE`): postgres://USER:PASSWORD@HOST:PORT/DATABASE"),
    foreign("DB_POOL_*", "nothing: connections to PostgreSQL are opened as needed"),
    foreign("FILE_BUFFER_*", "`data` and `spool_max`: pushes wait in `spool` under the data directory"),
    foreign("NUM_WORKERS", "nothing: one process uses all cores"),
    foreign("QUEEN_MAX_BODY_BYTES", "nothing: a body holds at most 64 MiB"),
    foreign("QUEEN_TENANCY_HEADER", "`store_schema`: a server for each tenant"),
    foreign("QUEEN_POP_AUTOPILOT", "nothing: a pop asks for it with `autopilot=true`"),
    foreign("QUEEN_*", "what [settings](settings.md) lists, if anything"),
];

/// Variables of Queen's clients and tests, which a server does not read either.
const OF_CLIENTS: &[&str] = &["QUEEN_URL", "QUEEN_SERVER_URL", "QUEEN_SDK_"];

/// What a variable is, if it is one of Queen's servers.
pub(crate) fn find(name: &str) -> Option<&'static Foreign> {
    if OF_CLIENTS.iter().any(|beginning| name.starts_with(beginning)) {
        return None;
    }
    FOREIGN.iter().find(|foreign| match foreign.name.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == foreign.name,
    })
}
