// Ownership: every lease there is, on a partition, a job, a shard, an election, a lock or the jobs of all servers: who holds
// it, under which token, until when, and how it moved. Start at `gather`.

import { api, learnClock, optional, post, seg, serverNow } from "./api.js";
import { confirmName, form, toast } from "./dialog.js";
import { h, svg } from "./dom.js";
import { ago, brief, clock, count, countdown, duration, groupName, plural } from "./format.js";
import { hue, lease, owner } from "./lease.js";
import { adjust, link } from "./router.js";
import { badge, panel, stateBadge, table } from "./table.js";

/** @typedef {import("./main.js").Context} Context */
/**
 * @typedef {object} Lease
 * @property {string} kind partition, job, shard, election, lock or server
 * @property {string} id the same for the same thing, whoever holds it
 * @property {string} what
 * @property {string} [href]
 * @property {string | null} owner
 * @property {string} [note] more about the owner
 * @property {number | string | null} token
 * @property {number} since
 * @property {number} until NaN where heartbeats renew it and the end is not told
 * @property {number} total how long it is when it is given
 * @property {() => any} [act]
 */

const KINDS = /** @type {[string, string][]} */ ([["partition", "Partitions"], ["job", "Jobs"], ["shard", "Shards"], ["election", "Elections"], ["lock", "Locks"], ["server", "Servers"]]);
const DETAILS_MAX = 24;
const MOVES_MAX = 60;
const CELLS_MAX = 2048;
/** How long a shard that moved is marked. */
const MARKED_MS = 6000;

export const title = () => "Ownership";
export const every = 1500;

/** @param {Context} ctx */
export async function load(ctx) {
  const { signal } = ctx;
  const get = (/** @type {string} */ path) => optional(`/api/v1/${path}`, signal);
  const [partitions, jobs, workers, services, elections, locks, nodes, events] = await Promise.all([
    api("/api/v1/leases?limit=500", { signal }), get("jobs?state=running,cancelling&limit=200"), get("workers"), get("shards"), get("elections"), get("locks?limit=500"), get("nodes"), get("events"),
  ]);
  learnClock(partitions.now);
  const [maps, groups] = await Promise.all([
    Promise.all((services?.services ?? []).slice(0, DETAILS_MAX).map((/** @type {any} */ row) => get(`shards/${seg(row.service)}`))),
    Promise.all((elections?.elections ?? []).slice(0, DETAILS_MAX).map((/** @type {any} */ row) => get(`elections/${seg(row.group)}`))),
  ]);
  const data = { partitions, jobs, workers, services, elections, locks, nodes, maps: maps.filter(Boolean), groups: groups.filter(Boolean), events: events?.events ?? [] };
  const leases = gather(ctx, data);
  follow(ctx.local, leases, data.maps);
  return { ...data, leases };
}

/** Every lease in one form. */
/** @param {Context} ctx @param {any} data @returns {Lease[]} */
function gather(ctx, { partitions, jobs, workers, maps, elections, groups, locks, nodes }) {
  const now = serverNow();
  const byId = new Map((workers?.workers ?? []).map((/** @type {any} */ one) => [one.workerId, one]));
  const details = new Map(groups.map((/** @type {any} */ one) => [one.group, one]));
  /** @type {Lease[]} */
  const leases = [];
  for (const row of partitions.leases) {
    leases.push({ kind: "partition", id: `p ${row.queue} ${row.partitionId} ${row.group}`, what: `${row.queue} / ${row.partition}`, href: link("queues", row.queue, { tab: "groups" }), owner: groupName(row.group), note: `lease ${row.leaseId}`, token: row.token, since: Date.parse(row.since), until: Date.parse(row.until), total: Date.parse(row.until) - Date.parse(row.since) });
  }
  for (const job of jobs?.jobs ?? []) {
    const worker = byId.get(job.workerId);
    const until = Date.parse(worker?.leaseUntil ?? "");
    leases.push({ kind: "job", id: `j ${job.jobId}`, what: `${job.jobType} ${brief(job.jobId)}`, href: link("jobs", job.jobId), owner: worker?.name ?? job.workerId, note: job.workerId, token: job.fence, since: Date.parse(job.startedAt), until, total: until - Date.parse(worker?.seenAt ?? "") });
  }
  for (const service of maps) {
    for (const worker of service.assignments) {
      for (const grant of worker.grants ?? []) {
        const what = grant.from === grant.to ? `${grant.from}` : `${grant.from} – ${grant.to}`;
        leases.push({ kind: "shard", id: `s ${service.service} ${grant.from}`, what: `${service.service} / ${what}`, href: link("ownership", { kind: "shard", service: service.service }), owner: worker.workerId, note: worker.sessionId ? `session ${worker.sessionId}` : "no session", token: grant.token, since: Date.parse(worker.since), until: NaN, total: worker.leaseMs });
      }
    }
  }
  for (const row of elections?.elections ?? []) {
    const { record } = details.get(row.group) ?? {};
    const act = () => stepDown(ctx, row);
    leases.push({ kind: "election", id: `e ${row.group}`, what: row.group, href: link("ownership", { kind: "election" }), owner: row.coordinator, note: record?.process ? `process ${record.process}` : record?.incarnation, token: row.epochNumber, since: record?.epochStart ?? NaN, until: row.coordinator ? now + row.leaseMs : NaN, total: Math.max(record?.leaseMs ?? 0, row.leaseMs), act });
  }
  for (const permit of locks?.permits ?? []) {
    const act = () => release(ctx, permit);
    const slots = locks.permits.filter((/** @type {any} */ one) => one.name === permit.name).length > 1 || permit.slot > 0;
    leases.push({ kind: "lock", id: `l ${permit.name} ${permit.slot}`, what: slots ? `${permit.name} · permit ${permit.slot}` : permit.name, owner: permit.owner, token: permit.token, since: Date.parse(permit.since), until: Date.parse(permit.expiresAt), total: Date.parse(permit.expiresAt) - Date.parse(permit.renewedAt), act });
  }
  if (nodes?.leader) {
    const node = nodes.nodes.find((/** @type {any} */ one) => one.isLeader);
    leases.push({ kind: "server", id: "n leader", what: "leader of the jobs", href: link("workers"), owner: node?.name ?? nodes.leader.nodeId, note: nodes.leader.nodeId, token: nodes.leader.term, since: NaN, until: now + nodes.leader.leaseMs, total: 0 });
  }
  for (const node of nodes?.nodes ?? []) {
    if (node.slices) leases.push({ kind: "server", id: `n ${node.nodeId}`, what: plural(node.slices, "slice") + " of the jobs", href: link("workers"), owner: node.name, note: node.nodeId, token: null, since: Date.parse(node.startedAt), until: NaN, total: 0 });
  }
  for (const one of leases) {
    // Where nothing tells how long a lease is, the longest that was seen stands for it.
    /** @type {Record<string, number>} */
    const seen = (ctx.local.longest ??= {});
    const longest = Math.max(seen[one.id] ?? 0, one.total || 0, one.until - now || 0);
    seen[one.id] = longest;
    one.total = one.total || longest;
  }
  return leases;
}

/** Notes what has moved since the last look. */
/** @param {Record<string, any>} local @param {Lease[]} leases @param {any[]} maps */
function follow(local, leases, maps) {
  const before = local.before;
  const now = serverNow();
  local.moves ??= [];
  local.began ??= now;
  const add = (/** @type {string} */ kind, /** @type {string} */ what, /** @type {any} */ from, /** @type {any} */ to, /** @type {any} */ token) => local.moves.unshift({ at: now, kind, what, from, to, token, key: `${now} ${what} ${to}` });
  const held = new Map(leases.filter((one) => one.kind !== "shard").map((one) => [one.id, one]));
  if (before) {
    for (const [id, one] of held) {
      const old = before.held.get(id);
      if (old && old.owner !== one.owner) add(one.kind, one.what, old.owner, one.owner, one.token);
      else if (old && one.kind === "election" && old.token !== one.token) add(one.kind, one.what, old.owner, one.owner, one.token);
      else if (!old && ["election", "lock"].includes(one.kind)) add(one.kind, one.what, null, one.owner, one.token);
    }
    for (const [id, one] of before.held) if (!held.has(id) && ["election", "lock"].includes(one.kind)) add(one.kind, one.what, one.owner, null, null);
  }
  // Shards move one by one, whatever ranges they are granted in.
  /** @type {Map<string, any>} */
  const shards = new Map();
  for (const service of maps) {
    if (service.maxShardCount > CELLS_MAX * 8) continue;
    for (const worker of service.assignments) for (const { from, to, token } of worker.grants ?? []) for (let shard = from; shard <= to; shard++) shards.set(`${service.service} ${shard}`, { service: service.service, shard, owner: worker.workerId, token });
  }
  local.marked ??= new Map();
  if (before) {
    /** @type {Map<string, any>} */
    const runs = new Map();
    const moved = (/** @type {any} */ one, /** @type {string | null} */ from, /** @type {string | null} */ to, /** @type {any} */ token) => {
      local.marked.set(`${one.service} ${one.shard}`, now);
      const key = `${one.service} ${from} ${to}`;
      const run = runs.get(key) ?? { service: one.service, from, to, numbers: [], token };
      run.numbers.push(one.shard);
      runs.set(key, run);
    };
    for (const [key, one] of shards) if (before.shards.get(key)?.owner !== one.owner) moved(one, before.shards.get(key)?.owner ?? null, one.owner, one.token);
    for (const [key, one] of before.shards) if (!shards.has(key)) moved(one, one.owner, null, null);
    for (const run of runs.values()) add("shard", `${run.service} / ${spans(run.numbers)}`, run.from, run.to, run.token);
  }
  for (const [key, at] of local.marked) if (now - at > MARKED_MS) local.marked.delete(key);
  local.before = { held, shards };
  local.moves = local.moves.slice(0, MOVES_MAX);
}

/** Numbers as ranges: 1–3, 7. */
/** @param {number[]} numbers */
function spans(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b);
  /** @type {[number, number][]} */
  const found = [];
  for (const number of sorted) {
    const last = found.at(-1);
    if (last && last[1] + 1 === number) last[1] = number;
    else found.push([number, number]);
  }
  const shown = found.slice(0, 4).map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`));
  return shown.join(", ") + (found.length > 4 ? ` and ${found.length - 4} more` : "");
}

/** @param {Context} ctx @param {any} data */
export function view(ctx, data) {
  const kind = ctx.params.get("kind") ?? "";
  const text = (ctx.params.get("find") ?? "").toLowerCase();
  /** @type {Lease[]} */
  const all = data.leases;
  const rows = all.filter((one) => (!kind || one.kind === kind) && `${one.what} ${one.owner} ${one.note ?? ""} ${one.token}`.toLowerCase().includes(text));
  const maps = (!kind || kind === "shard") && data.maps.length ? shardMaps(ctx, data) : null;
  const groups = (!kind || kind === "election") && data.groups.length ? electionCards(data) : null;
  return [
    h("div.head", null, h("h1", null, "Ownership"), h("p", null, "Every lease there is: who holds what, under which token, until when. A write that shows an older token is refused.")),
    kinds(all, kind),
    h("div.columns.wide", null,
      h("div.stack", null, leaseTable(ctx, rows, data), maps, groups),
      h("div.stack", null, moves(ctx, kind), owners(rows), events(data.events))),
  ];
}

/** @param {Lease[]} all @param {string} chosen */
function kinds(all, chosen) {
  const button = (/** @type {string} */ kind, /** @type {string} */ name) => {
    const own = kind ? all.filter((one) => one.kind === kind) : all;
    const next = Math.min(...own.map((one) => one.until).filter((until) => until > serverNow()));
    const free = own.filter((one) => !one.owner).length;
    const note = free ? h("span.note.bad-text", null, `${free} free`) : Number.isFinite(next) ? h("span.note", null, `next in ${countdown(next - serverNow())}`) : h("span.note", null, own.length ? "kept by heartbeats" : "none");
    return h("button.tile.kind", { type: "button", key: kind, "aria-pressed": String(kind === chosen), onclick: () => adjust({ kind, service: null }) }, h("span.name", null, kind ? h("i", { class: `k-${kind}`, "aria-hidden": "true" }) : null, name), h("span.value", null, count(own.length)), note);
  };
  return h("div.tiles", { role: "group", "aria-label": "Kind of lease" }, button("", "All"), KINDS.map(([kind, name]) => button(kind, name)));
}

/** @param {Context} ctx @param {Lease[]} rows @param {any} data */
function leaseTable(ctx, rows, { partitions }) {
  const now = serverNow();
  const ends = (/** @type {Lease} */ one) => (Number.isFinite(one.until) ? lease(one.until, one.total) : !one.owner ? badge("free", "bad") : h("span.muted", null, one.kind === "shard" ? `heartbeats, ${duration(one.total)}` : "its process"));
  return panel(["Leases ", h("small", null, "the first to end on top")], [
    h("div.filters", null, h("label", null, "Thing, owner or token", h("input", { type: "search", value: ctx.params.get("find") ?? "", oninput: (/** @type {any} */ event) => adjust({ find: event.target.value }) }))),
    table(ctx, {
      id: "leases", label: "Leases", rows, key: (one) => one.id, sort: "Ends in", max: 100,
      empty: ctx.params.get("find") ? "No lease fits." : "Nothing is held now: no consumer has a message, no worker a job or a shard, nobody a lock.",
      columns: [
        { name: "What", by: (one) => one.kind + one.what, cell: (one) => h("span.what", null, h("i", { class: `k-${one.kind}`, title: one.kind }), one.href ? h("a.cut", { href: one.href, title: one.what }, one.what) : h("b.cut", { title: one.what }, one.what), h("span.hidden", null, one.kind)) },
        { name: "Owner", by: (one) => one.owner ?? "", cell: (one) => [owner(one.owner, one.note), one.token === null ? null : h("code.token.narrow", null, one.token)] },
        { name: "Token", number: true, minor: true, by: (one) => Number(one.token ?? 0), cell: (one) => (one.token === null ? h("span.muted", null, "–") : h("code.token", null, one.token)), help: "The fencing token: it only rises" },
        { name: "Held for", number: true, minor: true, by: (one) => now - one.since, cell: (one) => ago(one.since, now) },
        { name: "Ends in", by: (one) => (Number.isFinite(one.until) ? one.until : one.owner ? Infinity : 0), cell: ends },
        ctx.may("write") && { name: "", cell: (/** @type {Lease} */ one) => (one.act && one.owner ? h("button.small", { type: "button", onclick: one.act }, one.kind === "lock" ? "Release" : "Step down") : null) },
      ],
    }),
    partitions.truncated ? h("p.hint.inside", null, "There are more leased partitions than the 500 that are shown.") : null], { id: "leases" });
}

/** @param {Context} ctx @param {string} kind */
function moves(ctx, kind) {
  const found = ctx.local.moves.filter((/** @type {any} */ one) => !kind || one.kind === kind).slice(0, 20);
  const body = found.length
    ? h("ol.moves", null, found.map((/** @type {any} */ one) => h("li", { key: one.key }, h("time", null, clock(one.at)), h("div", null, h("b", null, one.what), h("div.line", null, owner(one.from), h("span.muted", null, "→"), owner(one.to), one.token ? h("code.token", null, one.token) : null)))))
    : h("div.empty", null, "Nothing has changed hands since this page was opened.");
  return panel(["Moves ", h("small", null, `seen since ${clock(ctx.local.began)}`)], body, { id: "moves" });
}

/** @param {Lease[]} rows */
function owners(rows) {
  /** @type {Map<string, Map<string, number>>} */
  const by = new Map();
  for (const one of rows) {
    if (!one.owner) continue;
    const own = by.get(one.owner) ?? new Map();
    own.set(one.kind, (own.get(one.kind) ?? 0) + 1);
    by.set(one.owner, own);
  }
  const list = [...by].map(([name, kinds]) => ({ name, kinds, sum: [...kinds.values()].reduce((a, b) => a + b, 0) })).sort((a, b) => b.sum - a.sum).slice(0, 12);
  if (!list.length) return null;
  const most = list[0]?.sum ?? 1;
  return panel("Who holds most", h("ul.owners", null, list.map((one) => h("li", { key: one.name }, owner(one.name), h("span.stackbar", { role: "img", "aria-label": [...one.kinds].map(([kind, number]) => `${number} ${kind}`).join(", ") }, [...one.kinds].map(([kind, number]) => h("i", { key: kind, class: `k-${kind}`, title: `${number} ${kind}`, style: { width: `${(number / most) * 100}%` } }))), h("b", null, count(one.sum))))), { id: "owners" });
}

/** @param {any[]} found */
function events(found) {
  if (!found.length) return null;
  const skip = new Set(["id", "type", "at", "time", "kind"]);
  const words = (/** @type {any} */ event) => Object.entries(event).filter(([name, value]) => !skip.has(name) && value !== null && typeof value !== "object").map(([name, value]) => `${name} ${value}`).join(", ");
  return panel(["Among the servers ", h("small", null, "from the store")], h("ol.moves", null, found.slice(-12).reverse().map((event) => h("li", { key: String(event.id) }, h("time", null, clock(event.at ?? event.time)), h("div", null, h("b", null, String(event.type ?? event.kind ?? "event").replace(/[._]/g, " ")), h("div.line.muted", null, words(event)))))), { id: "events" });
}

/** @param {Context} ctx @param {any} data */
function shardMaps(ctx, { maps }) {
  const only = ctx.params.get("service");
  return maps.filter((/** @type {any} */ one) => !only || one.service === only).map((/** @type {any} */ one) => shardMap(ctx, one));
}

/** One service: each shard a cell in the colour of its owner. */
/** @param {Context} ctx @param {any} service */
function shardMap(ctx, service) {
  const total = service.maxShardCount;
  const columns = total <= 48 ? Math.max(total, 16) : total <= 512 ? 48 : Math.min(400, Math.ceil(Math.sqrt(total * 4)));
  const rows = Math.max(1, Math.ceil(total / columns));
  const cell = (/** @type {number} */ from, /** @type {number} */ to, /** @type {string} */ kind, /** @type {string} */ label) => {
    const parts = [];
    for (let at = from; at <= to; ) {
      const end = total > CELLS_MAX ? Math.min(to, at - (at % columns) + columns - 1) : at;
      const marked = total <= CELLS_MAX && ctx.local.marked.has(`${service.service} ${at}`);
      parts.push(svg("rect", { key: `${at}`, class: `${kind}${marked ? " moved" : ""}`, x: (at % columns) * 10, y: Math.floor(at / columns) * 10, width: (end - at + 1) * 10 - 1.4, height: 8.6, rx: 1.6 }, svg("title", null, at === end ? `shard ${at}: ${label}` : `shards ${at}–${end}: ${label}`)));
      at = end + 1;
    }
    return parts;
  };
  const held = service.assignments.flatMap((/** @type {any} */ worker) => [
    ...(worker.grants ?? []).flatMap((/** @type {any} */ grant) => cell(grant.from, grant.to, hue(worker.workerId), `${worker.workerId}, token ${grant.token}`)),
    ...(worker.revoking ?? []).flatMap((/** @type {any} */ [from, to]) => cell(from, to, `revoking ${hue(worker.workerId)}`, `${worker.workerId} is to give it up`)),
  ]);
  const workers = table(ctx, {
    id: `workers-${service.service}`, label: `Workers of ${service.service}`, rows: service.assignments, key: (row) => row.workerId + row.sessionId, sort: "-Shards", max: 50, empty: "No worker has registered.",
    columns: [
      { name: "Worker", by: (row) => row.workerId, cell: (row) => owner(row.workerId, row.sessionId ? `session ${row.sessionId}` : "") },
      { name: "State", cell: (row) => [stateBadge(row.status), row.draining ? badge("draining", "warn") : null] },
      { name: "Shards", number: true, by: (row) => row.shardCount, cell: (row) => count(row.shardCount) },
      { name: "Weight", number: true, minor: true, by: (row) => row.weight, cell: (row) => row.weight },
      { name: "Newest token", number: true, by: (row) => Math.max(0, ...(row.grants ?? []).map((/** @type {any} */ one) => one.token)), cell: (row) => h("code.token", null, Math.max(0, ...(row.grants ?? []).map((/** @type {any} */ one) => one.token)) || "–") },
      { name: "Lease", number: true, minor: true, cell: (row) => duration(row.leaseMs) },
      { name: "Since", number: true, minor: true, by: (row) => -Date.parse(row.since), cell: (row) => ago(row.since, serverNow()) },
      ctx.may("write") && { name: "", cell: (/** @type {any} */ row) => h("button.small", { type: "button", onclick: () => drain(ctx, service.service, row) }, row.draining ? "Undrain" : "Drain") },
    ],
  });
  return panel([`Shards of ${service.service} `, h("small", null, `${count(total)}, generation ${service.generation}, ${plural(service.moves, "move")}`)], [
    h("div.inside", null, svg("svg.map", { viewBox: `-1 -1 ${columns * 10 + 1} ${rows * 10 + 1}`, role: "img", "aria-label": `${count(total - service.unassigned)} of ${count(total)} shards have an owner` }, svg("rect.ground", { x: -1, y: -1, width: columns * 10 + 1, height: rows * 10 + 1 }), total <= CELLS_MAX ? cell(0, total - 1, "free", "nobody") : null, held)),
    workers], { id: `map-${service.service}`, tools: [service.unassigned ? badge(`${count(service.unassigned)} free`, "bad") : badge("all owned", "ok"), service.revoking ? badge(`${count(service.revoking)} moving`, "warn") : null] });
}

/** @param {any} data */
function electionCards({ groups }) {
  const now = serverNow();
  const cards = groups.map((/** @type {any} */ one) => {
    const { record } = one;
    const members = one.workers.map((/** @type {any} */ worker) => h("li", { key: worker.workerId }, owner(worker.workerId), h("span.muted", null, `${worker.phase ?? ""}`), h("small", null, `heard ${ago(worker.lastHeartbeat, now)} ago`), worker.workerId === one.coordinator ? badge("coordinator", "ok") : null));
    return h("div.election", { key: one.group },
      h("header", null, h("b", null, one.group), one.stepDown ? badge("asked to step down", "warn") : null, one.released ? badge("released", "warn") : null, one.coordinator ? null : badge("nobody", "bad")),
      h("div.crown", null, owner(one.coordinator), one.coordinator ? lease(now + one.leaseMs, Math.max(record?.leaseMs ?? 0, one.leaseMs)) : null),
      h("dl.facts", null, [["Epoch", h("code.token", null, one.epochNumber)], ["Term began", record ? `${ago(record.epochStart, now)} ago` : "–"], ["Renewals", record ? count(record.leaseSeq) : "–"], ["Elected by", record?.electedBy ?? "–"], ["Hand over to", record?.handoverTo ?? null]].filter(([, value]) => value !== null).map(([name, value]) => h("div", { key: String(name) }, h("dt", null, name), h("dd", null, value)))),
      h("ul.members", null, members));
  });
  return panel(["Elections ", h("small", null, plural(groups.length, "group"))], h("div.elections", null, cards), { id: "elections" });
}

/** @param {Context} ctx @param {any} permit */
async function release(ctx, permit) {
  await confirmName({
    title: `Release ${permit.name}`, name: permit.name, action: "Release",
    text: `${permit.owner} still holds it. It loses the permit at once, and the next caller gets it under a higher token.`,
    submit: async () => {
      const { results } = await post("/api/v1/locks", { operations: [{ op: "release", name: permit.name, token: permit.token, slot: permit.slot }] });
      if (!results[0].released) throw new Error("it has changed hands or was renewed meanwhile: look again");
      toast(`${permit.name} is free.`);
    },
  });
  ctx.refresh();
}

/** @param {Context} ctx @param {any} election */
async function stepDown(ctx, election) {
  await form({
    title: `Have ${election.coordinator} step down`, action: "Ask", danger: true, text: "The coordinator ends its work and releases the term; then another one is elected under a higher token.",
    fields: [{ name: "next", label: "Who should be next", hint: "Left empty, any worker may." }, { name: "typed", label: `Type ${election.group} to confirm`, required: true }],
    submit: async ({ next, typed }) => {
      if (typed !== election.group) throw new Error(`that is not ${election.group}`);
      await post(`/api/v1/elections/${seg(election.group)}`, { action: "force", ...(next ? { desiredCoordinator: next } : {}) });
      toast(`${election.coordinator} was asked to step down.`);
    },
  });
  ctx.refresh();
}

/** @param {Context} ctx @param {string} service @param {any} worker */
async function drain(ctx, service, worker) {
  const action = worker.draining ? "undrain" : "drain";
  await form({ title: worker.draining ? `Give ${worker.workerId} shards again` : `Drain ${worker.workerId}`, action: worker.draining ? "Undrain" : "Drain", fields: [], text: worker.draining ? "It takes its share again." : "Its shards move to the other workers, each after it has stopped.", submit: () => post(`/api/v1/shards/${seg(service)}`, { action, workerId: worker.workerId }) });
  ctx.refresh();
}
