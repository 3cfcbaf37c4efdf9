//! Settings: one table says what can be set, under which names, what happens by default and why one would change it.
//!
//! Files, environment and flags all go through [`Settings::set`], so a value means the same wherever it stands, and
//! the reference page and the command line's help are printed from the same table. Always: a later source wins
//! (file, then environment, then flags); a name that is not known or a value that does not fit is an error that
//! names it, never a silent default. Not here: options of queues, which travel over HTTP; the server, which takes what
//! its parts need from [`Settings`]. Start at [`TABLE`], then [`Settings::load`].

mod cluster;
mod foreign;
mod load;
mod nodes;
mod security;
mod setting;
mod settings;
mod shards;
mod table;

pub use cluster::{Cluster, ClusterOptions};
pub use foreign::{FOREIGN, Foreign};
pub use load::{Error, PREFIX};
pub use nodes::Nodes;
pub use security::{Certificate, Security};
pub use setting::{Setting, ShownSetting, is_secret};
pub use settings::{EMBEDDED, Settings, SubscriptionMode};
pub use shards::{ShardSettings, ShardsListen};
pub use table::TABLE;
