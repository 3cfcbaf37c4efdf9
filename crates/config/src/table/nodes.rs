//! The settings about servers that share the jobs of one store.

use super::values::{filled, positive, positive_millis, set, show_millis};
use crate::setting::{Setting, setting};

pub(super) const LEASE: Setting = setting(
    ["job_leader_lease_ms", "job-leader-lease-ms", "BATON_JOB_LEADER_LEASE_MS"],
    &[],
    "MS",
    "The length of the lease of the jobs' leader; after the leader is killed, schedules fire again after at most this time plus 5 seconds.",
    |s, text| set(&mut s.nodes.times.term, text, positive_millis),
    |s| show_millis(s.nodes.times.term),
);
pub(super) const RENEW: Setting = setting(
    ["job_leader_renew_ms", "job-leader-renew-ms", "BATON_JOB_LEADER_RENEW_MS"],
    &[],
    "MS",
    "How often the leader renews its lease.",
    |s, text| set(&mut s.nodes.times.renew, text, positive_millis),
    |s| show_millis(s.nodes.times.renew),
);
pub(super) const MARGIN: Setting = setting(
    ["job_leader_margin_ms", "job-leader-margin-ms", "BATON_JOB_LEADER_MARGIN_MS"],
    &[],
    "MS",
    "How long before the end of its lease the leader stops acting, by its own clock.",
    |s, text| set(&mut s.nodes.times.margin, text, positive_millis),
    |s| show_millis(s.nodes.times.margin),
);
pub(super) const HEARTBEAT: Setting = setting(
    ["job_node_heartbeat_ms", "job-node-heartbeat-ms", "BATON_JOB_NODE_HEARTBEAT_MS"],
    &[],
    "MS",
    "How often a server on a shared store writes a heartbeat with the number of its jobs.",
    |s, text| set(&mut s.nodes.times.heartbeat, text, positive_millis),
    |s| show_millis(s.nodes.times.heartbeat),
);
pub(super) const DEAD_AFTER: Setting = setting(
    ["job_node_dead_after_ms", "job-node-dead-after-ms", "BATON_JOB_NODE_DEAD_AFTER_MS"],
    &[],
    "MS",
    "The silence, in the store's time, after which a server is dead and its jobs get another owner.",
    |s, text| set(&mut s.nodes.times.dead_after, text, positive_millis),
    |s| show_millis(s.nodes.times.dead_after),
);
pub(super) const ACK: Setting = setting(
    ["job_handoff_ack_timeout_ms", "job-handoff-ack-timeout-ms", "BATON_JOB_HANDOFF_ACK_TIMEOUT_MS"],
    &[],
    "MS",
    "How long a draining server waits for others to claim its jobs before it repeats the offer.",
    |s, text| set(&mut s.nodes.times.ack, text, positive_millis),
    |s| show_millis(s.nodes.times.ack),
);
pub(super) const TRIES: Setting = setting(
    ["job_handoff_tries", "job-handoff-tries", "BATON_JOB_HANDOFF_TRIES"],
    &[],
    "COUNT",
    "How often it makes the offer before it leaves the jobs to the leader.",
    |s, text| set(&mut s.nodes.times.tries, text, positive),
    |s| s.nodes.times.tries.to_string(),
);
pub(super) const TAIL: Setting = setting(
    ["job_handoff_tail_ms", "job-handoff-tail-ms", "BATON_JOB_HANDOFF_TAIL_MS"],
    &[],
    "MS",
    "How long it waits after that, while another server is alive.",
    |s, text| set(&mut s.nodes.times.tail, text, positive_millis),
    |s| show_millis(s.nodes.times.tail),
);
pub(super) const CEILING: Setting = setting(
    ["job_handoff_ceiling_ms", "job-handoff-ceiling-ms", "BATON_JOB_HANDOFF_CEILING_MS"],
    &[],
    "MS",
    "The time limit of the whole drain.",
    |s, text| set(&mut s.nodes.times.ceiling, text, positive_millis),
    |s| show_millis(s.nodes.times.ceiling),
);
pub(super) const ORPHANS: Setting = setting(
    ["job_orphan_check_ms", "job-orphan-check-ms", "BATON_JOB_ORPHAN_CHECK_MS"],
    &[],
    "MS",
    "How often the leader looks for jobs without an owner, besides when a server dies.",
    |s, text| set(&mut s.nodes.times.orphans_every, text, positive_millis),
    |s| show_millis(s.nodes.times.orphans_every),
);
pub(super) const COOLDOWN: Setting = setting(
    ["job_rebalance_cooldown_ms", "job-rebalance-cooldown-ms", "BATON_JOB_REBALANCE_COOLDOWN_MS"],
    &[],
    "MS",
    "The least time between two rebalances of jobs, from a server that owns twice as many as another.",
    |s, text| set(&mut s.nodes.times.cooldown, text, positive_millis),
    |s| show_millis(s.nodes.times.cooldown),
);
pub(super) const CHANNELS: Setting = setting(
    ["job_channel_prefix", "job-channel-prefix", "BATON_JOB_CHANNEL_PREFIX"],
    &[],
    "NAME",
    "The prefix of the names of channels, the queues to which events of jobs and servers are published while they exist.",
    |s, text| set(&mut s.nodes.channels, text, filled),
    |s| s.nodes.channels.clone(),
);

#[cfg(test)]
mod tests {
    use crate::settings::Settings;

    #[test]
    fn times_that_do_not_fit_together_are_refused() {
        let load = |flags: &[(&str, &str)]| {
            let flags = flags.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            Settings::load(None, std::iter::empty(), flags.collect::<Vec<_>>())
        };
        assert!(load(&[("job_leader_lease_ms", "40000")]).is_ok());
        let refused = load(&[("job_leader_lease_ms", "9000")]).unwrap_err().to_string();
        assert!(refused.contains("job_leader_"), "{refused}");
        assert!(load(&[("job_node_dead_after_ms", "11000")]).is_err());
        assert!(load(&[("job_handoff_tries", "0")]).is_err());
    }
}
