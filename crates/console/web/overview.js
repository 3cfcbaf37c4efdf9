// Overview: what needs attention first, then the numbers of everything.

import { api, learnClock, optional, query, serverNow } from "./api.js";
import { attention } from "./attention.js";
import { chart, points, RANGES, rangeMs, roundUpTime, sparkline } from "./chart.js";
import { h } from "./dom.js";
import { age, count, duration, groupName, plural, rate, short } from "./format.js";
import { adjust, link } from "./router.js";
import { badge, choices, panel, table, tile } from "./table.js";

/** @typedef {import("./main.js").Context} Context */

/** Rates are taken over this long, so that they are steady and still current. */
const RATE_MS = 10_000;
/** How often the plots are asked for; their points are minutes. */
const PLOTS_MS = 10_000;
const ROWS = 12;

export const title = () => "Overview";

/** @param {Context} ctx */
export async function load(ctx) {
  const { signal, local } = ctx;
  const get = (/** @type {string} */ path) => optional(`/api/v1/${path}`, signal);
  local.since ??= new Date(Math.floor(serverNow() / 60_000) * 60_000).toISOString();
  const [fleet, now, jobQueues, workers, nodes, elections, services, cluster, maintenance, health] = await Promise.all([
    api("/api/v1/fleet", { signal }), api(`/api/v1/analytics/worker-metrics${query({ from: local.since })}`, { signal }),
    get("job-queues"), get("workers"), get("nodes"), get("elections"), get("shards"), get("cluster"),
    ctx.may("admin") ? get("system/maintenance") : null, optional("/health", signal).catch(() => null),
  ]);
  learnClock(fleet.now);
  sample(local, now.summary, jobQueues);
  if (!local.plots || local.plots.range !== ctx.range || Date.now() - local.plots.at > PLOTS_MS) {
    const from = new Date(serverNow() - rangeMs(ctx.range)).toISOString();
    const [all, byQueue] = await Promise.all([
      api(`/api/v1/analytics/worker-metrics${query({ from })}`, { signal }),
      optional(`/api/v1/analytics/queue-ops${query({ from: new Date(serverNow() - rangeMs("1h")).toISOString() })}`, signal),
    ]);
    local.plots = { at: Date.now(), range: ctx.range, all, byQueue };
  }
  return { fleet, jobQueues, workers, nodes, elections, services, cluster, maintenance, health, notices: attention({ fleet, jobQueues, workers, nodes, elections, services, cluster, maintenance, health }) };
}

/** Keeps totals of the last seconds, from which rates follow. */
/** @param {Record<string, any>} local @param {any} summary @param {any} jobQueues */
function sample(local, summary, jobQueues) {
  const at = Date.now();
  local.samples ??= [];
  // The span begins anew each half hour, so that an open page does not ask for ever more.
  if (at - (local.base ?? (local.base = at)) > 1_800_000) {
    local.base = at;
    local.samples = [];
    local.since = null;
    return;
  }
  const completed = (jobQueues?.queues ?? []).reduce((/** @type {number} */ sum, /** @type {any} */ row) => sum + (row.counts?.completed ?? 0), 0);
  local.samples.push({ at, pushed: summary.totalPushMessages, popped: summary.totalPopMessages, acked: summary.totalAckMessages - summary.totalAckFailed, failed: summary.totalAckFailed, completed });
  while (local.samples.length > 2 && at - local.samples[0].at > RATE_MS) local.samples.shift();
}

/** @param {Record<string, any>} local @param {string} name @returns {number | null} */
function perSecond(local, name) {
  const [first, last] = [local.samples?.[0], local.samples?.at(-1)];
  if (!first || first === last) return null;
  return Math.max(0, ((last[name] - first[name]) * 1000) / (last.at - first.at));
}

/** @param {Context} ctx @param {any} data */
export function view(ctx, data) {
  const { local } = ctx;
  const { times, rows, seconds } = points(local.plots.all.timeSeries, (row) => row.timestamp, local.plots.all.bucketMinutes, local.plots.all.timeRange);
  const series = (/** @type {(row: any) => number} */ of) => rows.map((row) => (row ? of(row) : 0));
  const lately = (/** @type {(row: any) => number} */ of) => series(of).slice(-31, -1);
  const per = (/** @type {string} */ field) => rows.map((row, index) => (row?.[field] ?? 0) / (seconds[index] ?? 60));
  const flow = [
    { name: "Pushed", tone: "one", values: per("pushMessages") }, { name: "Delivered", tone: "two", values: per("popMessages") },
    { name: "Acked", tone: "three", values: per("ackSuccess") }, { name: "Failed", tone: "four", values: per("ackFailed") },
  ];
  const waits = [{ name: "Longest", tone: "three", values: series((row) => row.maxLagMs) }, { name: "Average", tone: "one", values: series((row) => row.avgLagMs) }];
  const range = choices("Time range", RANGES, ctx.range, (value) => adjust({ range: value === "1h" ? null : value }));
  return [
    h("div.head", null, h("h1", null, "Overview"), h("div.tools", null, range)),
    notices(data.notices),
    tiles(ctx, data, lately),
    h("div.columns", null,
      panelOf(chart({ title: "Messages", unit: "per second", times, series: flow, format: rate })),
      panelOf(chart({ title: "Wait before delivery", unit: "time", times, series: waits, format: duration, round: roundUpTime }))),
    h("div.columns", null, queueTable(ctx, data), h("div.stack", null, jobTable(ctx, data), leaders(data))),
  ];
}

/** @param {any} body */
const panelOf = (body) => h("section.panel", null, body);

/** @param {import("./attention.js").Notice[]} found */
function notices(found) {
  const body = found.length
    ? h("ul.attention", null, found.slice(0, ROWS).map((one) => h("li", { key: one.name + one.text.replace(/[\d.,]+/g, ""), class: one.tone }, h("span", null, h("a", { href: one.href }, one.name), ": ", one.text))))
    : h("ul.attention", null, h("li.ok", null, h("span", null, "Nothing. No message is older than a minute without reason, no dead letters, everything has an owner.")));
  const more = found.length > ROWS ? h("small", null, `${found.length - ROWS} more`) : null;
  return panel("Needs attention first", body, { id: "attention", tools: more });
}

/** @param {Context} ctx @param {any} data @param {(of: (row: any) => number) => number[]} lately */
function tiles({ local }, data, lately) {
  const { fleet, jobQueues, nodes, cluster, elections, workers } = data;
  const sum = (/** @type {string} */ name) => fleet.queues.reduce((/** @type {number} */ all, /** @type {any} */ row) => all + row.messages[name], 0);
  const oldest = fleet.groups.filter((/** @type {any} */ row) => row.totalLag).sort((/** @type {any} */ a, /** @type {any} */ b) => b.maxTimeLag - a.maxTimeLag)[0];
  const jobs = (/** @type {string[]} */ ...states) => (jobQueues?.queues ?? []).reduce((/** @type {number} */ all, /** @type {any} */ row) => all + states.reduce((sum, state) => sum + (row.counts?.[state] ?? 0), 0), 0);
  const flow = (/** @type {string} */ name, /** @type {string} */ of, /** @type {string} */ tone, /** @type {(row: any) => number} */ by) => {
    const now = perSecond(local, of);
    return tile(name, [now === null ? "…" : rate(now), h("small", null, " /s")], { more: sparkline(lately(by), tone, `${name} over the last minutes`) });
  };
  const servers = cluster?.servers?.length ?? 1;
  const dead = sum("deadLetter");
  const failed = jobs("failed", "timed_out");
  const led = (elections?.elections ?? []).filter((/** @type {any} */ row) => row.coordinator).length;
  return h("div.tiles", null,
    flow("Pushed", "pushed", "one", (row) => row.pushPerSecond), flow("Delivered", "popped", "two", (row) => row.popPerSecond),
    flow("Acked", "acked", "three", (row) => row.ackSuccess), flow("Failed acks", "failed", "four", (row) => row.ackFailed),
    tile("Depth", short(sum("pending")), { note: `${short(sum("processing"))} in work`, href: link("queues") }),
    tile("Oldest", oldest ? age(oldest.maxTimeLag) : "–", { note: oldest ? `${oldest.queue} · ${groupName(oldest.name)}` : "nothing waits", href: oldest ? link("queues", oldest.queue, { tab: "groups" }) : link("queues"), tone: oldest?.maxTimeLag > 600 ? "bad" : "" }),
    tile("Dead letters", short(dead), { tone: dead ? "warn" : "", href: link("dead-letters"), note: "of queues" }),
    tile("Jobs running", short(jobs("running", "cancelling")), { href: link("jobs", { state: "running" }), note: `${short(jobs("pending", "dispatched"))} wait · ${plural((workers?.workers ?? []).filter((/** @type {any} */ one) => one.state === "active").length, "worker")}` }),
    tile("Jobs failed", short(failed), { tone: failed ? "warn" : "", href: link("jobs", { state: "failed,timed_out" }), note: "for good" }),
    tile("Job leader", nodes?.leader ? nodes.nodes.find((/** @type {any} */ node) => node.isLeader)?.name ?? nodes.leader.nodeId : "none", { tone: nodes?.leader ? "" : "bad", note: nodes?.leader ? `term ${nodes.leader.term}` : "", href: link("workers") }),
    tile("Servers", count(servers), { href: link("workers"), note: cluster?.gossip ? `${cluster.peers_heard} of ${cluster.peers_configured} peers heard` : "alone" }),
    elections?.elections?.length ? tile("Elections", `${led}/${elections.elections.length}`, { note: "have a coordinator", href: link("ownership", { kind: "election" }), tone: led < elections.elections.length ? "warn" : "" }) : null);
}

/** @param {Context} ctx @param {any} data */
function queueTable(ctx, { fleet }) {
  /** @type {Map<string, any[]>} */
  const ops = new Map();
  for (const row of ctx.local.plots.byQueue?.series ?? []) ops.set(row.queueName, [...(ops.get(row.queueName) ?? []), row]);
  const span = ctx.local.plots.byQueue?.timeRange;
  const worst = new Map();
  for (const group of fleet.groups) if (group.totalLag && (worst.get(group.queue) ?? -1) < group.maxTimeLag) worst.set(group.queue, group.maxTimeLag);
  const rows = [...fleet.queues].sort((a, b) => b.messages.pending - a.messages.pending || a.name.localeCompare(b.name)).slice(0, ROWS);
  const line = (/** @type {string} */ name) => {
    const own = points(ops.get(name) ?? [], (row) => row.bucket, ctx.local.plots.byQueue?.bucketMinutes ?? 1, span ?? { from: "", to: "" });
    return sparkline(own.rows.map((row) => row?.pushMessages ?? 0), "one", "pushed in the last hour");
  };
  return panel(["Queues ", h("small", null, "deepest first")], table(ctx, {
    id: "queues", label: "Queues, deepest first", rows, key: (row) => row.name,
    empty: ["There is no queue yet. The first push makes one: ", h("code", null, `baton push orders '{"number": 1}'`)],
    columns: [
      { name: "Queue", cell: (row) => h("a.cut", { href: link("queues", row.name) }, row.name) },
      { name: "Pushed, 1 h", cell: (row) => line(row.name) },
      { name: "Depth", number: true, cell: (row) => count(row.messages.pending) },
      { name: "In work", number: true, cell: (row) => count(row.messages.processing) },
      { name: "Oldest", number: true, cell: (row) => (worst.has(row.name) ? age(worst.get(row.name)) : "–") },
      { name: "Dead", number: true, cell: (row) => h("span", { class: row.messages.deadLetter ? "warn-text" : "muted" }, count(row.messages.deadLetter)) },
    ],
  }), { id: "overview-queues", tools: h("a", { href: link("queues") }, `All ${count(fleet.queues.length)}`) });
}

/** @param {Context} ctx @param {any} data */
function jobTable(ctx, { jobQueues }) {
  if (!jobQueues?.queues?.length) return panel("Jobs", h("div.empty", null, "No job was ever enqueued."), { id: "overview-jobs" });
  return panel("Jobs", table(ctx, {
    id: "jobs", label: "Job queues", rows: jobQueues.queues, key: (row) => row.name, sort: "-Waiting",
    columns: [
      { name: "Queue", by: (row) => row.name, cell: (row) => [h("a.cut", { href: link("jobs", { queue: row.name }) }, row.name), row.paused ? [" ", badge("paused", "warn")] : null] },
      { name: "Waiting", number: true, by: (row) => (row.counts.pending ?? 0) + (row.counts.dispatched ?? 0), cell: (row) => count((row.counts.pending ?? 0) + (row.counts.dispatched ?? 0)) },
      { name: "Running", number: true, by: (row) => row.counts.running ?? 0, cell: (row) => count(row.counts.running ?? 0) },
      { name: "Failed", number: true, by: (row) => row.counts.failed ?? 0, cell: (row) => h("span", { class: row.counts.failed ? "bad-text" : "muted" }, count((row.counts.failed ?? 0) + (row.counts.timed_out ?? 0))) },
    ],
  }), { id: "overview-jobs", tools: h("a", { href: link("jobs") }, "All jobs") });
}

/** @param {any} data */
function leaders({ nodes, elections, services }) {
  const lines = [
    nodes?.leader ? ["jobs", nodes.nodes.find((/** @type {any} */ node) => node.isLeader)?.name ?? nodes.leader.nodeId, nodes.leader.term] : null,
    ...(elections?.elections ?? []).slice(0, 8).map((/** @type {any} */ row) => [row.group, row.coordinator, row.epochNumber]),
  ].filter(Boolean);
  const shards = (services?.services ?? []).slice(0, 6);
  return panel("Who leads", h("div", null,
    lines.length ? h("dl.facts", null, lines.map(([name, who, term]) => h("div", { key: name }, h("dt", null, name), h("dd", null, who ?? badge("none", "bad"), " ", h("small", null, `token ${term}`))))) : h("div.empty", null, "There is no election."),
    shards.length ? h("dl.facts", null, shards.map((/** @type {any} */ row) => h("div", { key: row.service }, h("dt", null, `shards of ${row.service}`), h("dd", null, `${count(row.maxShardCount - row.unassigned)} of ${count(row.maxShardCount)} `, h("small", null, `on ${plural(row.workers, "worker")}`))))) : null), { id: "leaders", tools: h("a", { href: link("ownership") }, "Every lease") });
}
