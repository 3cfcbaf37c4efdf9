// What needs attention first, in words. A function of what the API said: no state, no clock of its own.

import { count, duration, groupName, plural } from "./format.js";
import { link } from "./router.js";

/** @typedef {{tone: "bad" | "warn" | "ok", weight: number, name: string, text: string, href: string}} Notice */

const OLD_SECONDS = 60;
const VERY_OLD_SECONDS = 600;

/**
 * @param {Record<string, any>} seen the answers by subject; `null` where the token may not read or nothing is there
 * @returns {Notice[]} the gravest first
 */
export function attention(seen) {
  /** @type {Notice[]} */
  const found = [];
  const add = (/** @type {"bad" | "warn"} */ tone, /** @type {number} */ weight, /** @type {string} */ name, /** @type {string} */ text, /** @type {string} */ href) =>
    found.push({ tone, weight: weight + (tone === "bad" ? 1000 : 0), name, text, href });
  server(seen, add);
  queues(seen, add);
  jobs(seen, add);
  owners(seen, add);
  return found.sort((a, b) => b.weight - a.weight);
}

/** @typedef {(tone: "bad" | "warn", weight: number, name: string, text: string, href: string) => void} Add */

/** @param {Record<string, any>} seen @param {Add} add */
function server({ health, cluster, nodes, maintenance }, add) {
  if (health && health.status !== "healthy") add("bad", 900, "Server", `it is ${health.status}${health.error ? `: ${health.error}` : ""}`, link("settings"));
  for (const warning of health?.warnings ?? []) add("warn", 300, "Server", warning, link("settings"));
  if (maintenance?.maintenanceMode) add("warn", 400, "Maintenance", `pushes are spooled, ${plural(maintenance.bufferedMessages, "message")} so far`, link("settings"));
  if (maintenance?.popMaintenanceMode) add("warn", 400, "Maintenance", "pops are stopped: no consumer gets anything", link("settings"));
  for (const peer of cluster?.peers ?? []) if (!peer.heard) add("bad", 500, peer.peer, `this server is not heard${peer.reason ? `: ${peer.reason}` : ""}`, link("workers"));
  for (const one of cluster?.servers ?? []) if (one.circuit?.state === "open") add("bad", 450, one.server_id, "requests to it fail, so it is not asked for a while", link("workers"));
  if (cluster?.duplicate_node_id) add("bad", 800, cluster.duplicate_node_id, "another server has the same node_id", link("workers"));
  if (nodes && !nodes.leader && nodes.nodes?.length) add("bad", 600, "Jobs", "no server leads: nothing is scheduled, retried or timed out", link("workers"));
  if (nodes?.orphanedSlices) add("bad", 550, "Jobs", `${plural(nodes.orphanedSlices, "slice")} of the jobs have no owner`, link("workers"));
  for (const node of nodes?.nodes ?? []) if (node.state === "dead" && node.slices) add("bad", 540, node.name, "this server is silent and still owns jobs", link("workers"));
}

/** @param {Record<string, any>} seen @param {Add} add */
function queues({ fleet }, add) {
  const grouped = new Set();
  for (const group of fleet?.groups ?? []) {
    grouped.add(group.queue);
    if (!group.totalLag || group.maxTimeLag < OLD_SECONDS) continue;
    const idle = !group.leases;
    const who = groupName(group.name);
    const whose = who === "(no group)" ? "" : ` for ${who}`;
    const tone = group.maxTimeLag >= VERY_OLD_SECONDS || idle ? "bad" : "warn";
    add(tone, Math.min(group.maxTimeLag / 60, 500), group.queue,
      `oldest message${whose} is ${duration(group.maxTimeLag * 1000)} old, ${plural(group.totalLag, "message")} wait${group.totalLag === 1 ? "s" : ""}, ${idle ? "no consumer holds any" : `${plural(group.leases, "partition")} in work`}`,
      link("queues", group.queue, { tab: "groups" }));
  }
  for (const queue of fleet?.queues ?? []) {
    const { messages } = queue;
    if (messages.deadLetter) add("warn", Math.min(100 + messages.deadLetter / 100, 400), queue.name, `${plural(messages.deadLetter, "dead letter")}`, link("dead-letters", { queue: queue.name }));
    if (!grouped.has(queue.name) && messages.pending && Date.parse(fleet.now) - Date.parse(queue.createdAt) > OLD_SECONDS * 1000) {
      add("warn", 60, queue.name, `${plural(messages.pending, "message")} wait, and no consumer has come yet`, link("queues", queue.name));
    }
  }
}

/** @param {Record<string, any>} seen @param {Add} add */
function jobs({ jobQueues, workers }, add) {
  const served = new Set((workers?.workers ?? []).filter((/** @type {any} */ one) => one.state === "active").flatMap((/** @type {any} */ one) => one.queues));
  for (const queue of jobQueues?.queues ?? []) {
    const counts = queue.counts ?? {};
    const waiting = (counts.pending ?? 0) + (counts.dispatched ?? 0);
    const failed = (counts.failed ?? 0) + (counts.timed_out ?? 0);
    const name = `jobs in ${queue.name}`;
    if (failed) add("warn", Math.min(120 + failed / 100, 420), name, `${count(failed)} failed for good`, link("dead-letters", { of: "jobs" }));
    if (queue.paused && waiting) add("warn", 80, name, `paused with ${plural(waiting, "job")} waiting`, link("jobs", { queue: queue.name }));
    else if (waiting && !served.has(queue.name)) add("bad", 200, name, `${plural(waiting, "job")} wait${waiting === 1 ? "s" : ""}, and no worker takes jobs of this queue`, link("workers"));
    else if (queue.oldestMs > OLD_SECONDS * 1000) add("warn", Math.min(queue.oldestMs / 60_000, 300), name, `the oldest waits for ${duration(queue.oldestMs)}`, link("jobs", { queue: queue.name }));
  }
  for (const worker of workers?.workers ?? []) {
    if (worker.state === "offline" && worker.running) add("bad", 210, worker.name, `this worker is silent and had ${plural(worker.running, "job")}`, link("workers"));
    else if (worker.state === "active" && !worker.takesWork) add("warn", 90, worker.name, "this worker is heard and takes no work", link("workers"));
  }
}

/** @param {Record<string, any>} seen @param {Add} add */
function owners({ services, elections }, add) {
  for (const service of services?.services ?? []) {
    const href = link("ownership", { kind: "shard", service: service.service });
    if (service.unassigned) add("bad", 250, `shards of ${service.service}`, `${count(service.unassigned)} of ${count(service.maxShardCount)} have no owner${service.workers ? "" : ", and no worker lives"}`, href);
    if (service.revoking) add("warn", 70, `shards of ${service.service}`, `${plural(service.revoking, "shard")} wait for the former owner to stop`, href);
  }
  for (const election of elections?.elections ?? []) {
    const href = link("ownership", { kind: "election" });
    if (!election.coordinator && !election.released) add("bad", 240, `election ${election.group}`, "nothing coordinates it", href);
    else if (election.stepDown) add("warn", 50, `election ${election.group}`, `${election.coordinator} was asked to step down`, href);
  }
}
