// Workers and servers: who works on what, who leads, who owns which slices of the jobs, and how requests are routed.

import { api, optional, post, seg, serverNow } from "./api.js";
import { bar } from "./chart.js";
import { confirmName, form, toast } from "./dialog.js";
import { h, svg } from "./dom.js";
import { ago, count, duration, full, plural } from "./format.js";
import { hue, lease, owner } from "./lease.js";
import { link } from "./router.js";
import { badge, facts, panel, stateBadge, table, tile } from "./table.js";

/** @typedef {import("./main.js").Context} Context */

/** Slices that the jobs of a store are divided into. */
const SLICES = 64;

export const title = () => "Workers and servers";

/** @param {Context} ctx */
export async function load({ signal }) {
  const [workers, nodes, cluster, queues] = await Promise.all([api("/api/v1/workers", { signal }), optional("/api/v1/nodes", signal), optional("/api/v1/cluster", signal), optional("/api/v1/job-queues", signal)]);
  return { workers: workers.workers, nodes, cluster, queues: queues?.queues ?? [] };
}

/** @param {Context} ctx @param {any} data */
export function view(ctx, { workers, nodes, cluster, queues }) {
  const active = workers.filter((/** @type {any} */ one) => one.state === "active");
  const room = active.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + one.maxConcurrency, 0);
  const running = workers.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + one.running, 0);
  const leader = nodes?.nodes.find((/** @type {any} */ one) => one.isLeader);
  return [
    h("div.head", null, h("h1", null, "Workers and servers")),
    h("div.tiles", null, tile("Workers", count(active.length), { note: workers.length > active.length ? `${count(workers.length - active.length)} not active` : "all active" }), tile("Jobs in work", count(running), { note: `room for ${count(room)}`, href: link("jobs", { state: "running" }) }),
      tile("Job leader", leader?.name ?? nodes?.leader?.nodeId ?? "none", { tone: nodes?.leader ? "" : "bad", note: nodes?.leader ? `term ${nodes.leader.term}` : "nothing is scheduled" }), tile("Servers", count(cluster?.servers.length ?? 1), { note: cluster?.gossip ? `${cluster.peers_heard} of ${cluster.peers_configured} peers heard` : "alone" }),
      cluster?.gossip ? tile("Balance", cluster.balanced ? "even" : "uneven", { tone: cluster.balanced ? "ok" : "warn", note: `imbalance ${cluster.imbalance_score}` }) : null, nodes?.orphanedSlices ? tile("Orphaned slices", count(nodes.orphanedSlices), { tone: "bad" }) : null),
    panel("Workers of jobs", table(ctx, {
      id: "workers", label: "Workers of jobs", rows: workers, key: (row) => row.workerId, sort: "Worker", empty: ["No worker was heard in the last hour. ", h("code", null, "baton worker --exec"), " is the shortest way to one."],
      columns: [
        { name: "Worker", by: (row) => row.name, cell: (row) => owner(row.name, row.workerId) },
        { name: "State", by: (row) => row.state, cell: (row) => [stateBadge(row.state), row.state === "active" && !row.takesWork ? badge("takes no work", "warn") : null] },
        { name: "Jobs", number: true, by: (row) => row.running, cell: (row) => [count(row.running), h("small", null, ` of ${count(row.maxConcurrency)} `), bar(row.running / Math.max(1, row.maxConcurrency))] },
        { name: "Lease ends in", by: (row) => Date.parse(row.leaseUntil), cell: (row) => lease(Date.parse(row.leaseUntil), Date.parse(row.leaseUntil) - Date.parse(row.seenAt)), help: "Each heartbeat renews it; when it ends the jobs go to others" },
        { name: "Queues", minor: true, cell: (row) => h("span.cut", null, row.queues.join(", ")) },
        { name: "Types", minor: true, cell: (row) => h("span.cut.muted", null, row.jobTypes.join(", ") || "any") },
        { name: "Labels", minor: true, cell: (row) => Object.entries(row.labels).map(([name, value]) => badge(`${name} ${value}`)) },
        { name: "Version", minor: true, cell: (row) => row.version || "–" },
        { name: "Since", number: true, minor: true, by: (row) => -Date.parse(row.registeredAt), cell: (row) => h("span", { title: full(row.registeredAt) }, ago(row.registeredAt, serverNow())) },
        ctx.may("write") && { name: "", cell: (/** @type {any} */ row) => (row.state === "offline" ? null : h("button.small", { type: "button", onclick: () => drainWorker(ctx, row) }, row.state === "draining" ? "Undrain" : "Drain")) },
      ],
    }), { id: "workers" }),
    served(queues, active),
    nodes ? servers(ctx, nodes) : null,
    cluster ? routing(ctx, cluster) : null,
  ];
}

/** Queues of jobs that no worker takes from. */
/** @param {any[]} queues @param {any[]} active */
function served(queues, active) {
  const taken = new Set(active.flatMap((one) => one.queues));
  const left = queues.filter((row) => !taken.has(row.name) && (row.counts.pending ?? 0) + (row.counts.dispatched ?? 0) > 0);
  return left.length ? h("div.banner", { key: "unserved" }, h("b", null, "No worker takes jobs of "), left.map((row, index) => [index ? ", " : "", h("a", { href: link("jobs", { queue: row.name }) }, row.name)]), ".") : null;
}

/** @param {Context} ctx @param {any} worker */
async function drainWorker(ctx, worker) {
  const back = worker.state === "draining";
  await form({
    title: back ? `Give ${worker.name} jobs again` : `Drain ${worker.name}`, action: back ? "Undrain" : "Drain", text: back ? "It takes jobs again." : "It takes no more jobs. It hears so with its next heartbeat.",
    fields: back ? [] : [{ name: "mode", label: "Jobs in work", type: "select", value: "graceful", options: [["graceful", "let them end"], ["immediate", "stop them and give them to others"]] }],
    submit: async ({ mode }) => { await post(`/api/v1/workers/${seg(worker.workerId)}/drain`, { mode: back ? "off" : mode }); toast(`${worker.name} was asked.`); },
  });
  ctx.refresh();
}

/** @param {Context} ctx @param {any} nodes */
function servers(ctx, nodes) {
  const owned = nodes.nodes.flatMap((/** @type {any} */ node) => Array.from({ length: node.slices }, () => node));
  const slices = [...owned, ...Array.from({ length: Math.max(0, SLICES - owned.length) }, () => null)];
  const map = svg("svg.map", { viewBox: "-1 -1 641 11", role: "img", "aria-label": nodes.nodes.map((/** @type {any} */ node) => `${node.name} owns ${node.slices} slices`).join(", ") }, slices.map((node, index) => svg("rect", { x: index * 10, y: 0, width: 8.6, height: 8.6, rx: 1.6, class: node ? hue(node.name) : "free" }, svg("title", null, node ? node.name : "no owner"))));
  return panel(["Servers that share the jobs ", h("small", null, `${SLICES} slices, each owned by one`)], [
    nodes.leader ? h("div.inside.crown", null, owner(nodes.nodes.find((/** @type {any} */ one) => one.isLeader)?.name ?? nodes.leader.nodeId, nodes.leader.nodeId), badge("leader", "ok"), h("code.token", null, `term ${nodes.leader.term}`), lease(serverNow() + nodes.leader.leaseMs, Math.max(30_000, nodes.leader.leaseMs))) : h("div.inside", null, badge("no leader", "bad")),
    h("div.inside", null, map),
    table(ctx, {
      id: "nodes", label: "Servers that share the jobs", rows: nodes.nodes, key: (row) => row.nodeId, sort: "Server",
      columns: [
        { name: "Server", by: (row) => row.name, cell: (row) => [owner(row.name, row.nodeId), row.isLeader ? badge("leader", "ok") : null, row.isOwn ? badge("this one") : null] },
        { name: "State", cell: (row) => stateBadge(row.state) },
        { name: "Slices", number: true, by: (row) => row.slices, cell: (row) => [count(row.slices), row.offered ? h("small", null, ` ${count(row.offered)} offered`) : null] },
        { name: "Jobs owned", number: true, by: (row) => row.ownedJobs, cell: (row) => count(row.ownedJobs) },
        { name: "Silent", number: true, by: (row) => row.silentMs, cell: (row) => duration(row.silentMs) },
        { name: "Version", minor: true, cell: (row) => row.version },
        { name: "Up", number: true, minor: true, by: (row) => -Date.parse(row.startedAt), cell: (row) => ago(row.startedAt, serverNow()) },
        ctx.may("admin") && { name: "", cell: (/** @type {any} */ row) => (row.state === "dead" ? null : h("button.small", { type: "button", onclick: () => drainNode(ctx, row) }, row.state === "draining" ? "Undrain" : "Drain")) },
      ],
    })], { id: "nodes" });
}

/** @param {Context} ctx @param {any} node */
async function drainNode(ctx, node) {
  const mode = node.state === "draining" ? "off" : "on";
  await confirmName({ title: mode === "on" ? `Drain ${node.name}` : `Let ${node.name} take part again`, name: node.name, action: mode === "on" ? "Drain" : "Undrain", text: mode === "on" ? "It hands its slices of the jobs over to other servers." : "It may own slices of the jobs again.", submit: async () => { await post(`/api/v1/nodes/${seg(node.nodeId)}/drain`, { mode }); toast(`${node.name} was asked.`); } });
  ctx.refresh();
}

/** @param {Context} ctx @param {any} cluster */
function routing(ctx, cluster) {
  if (!cluster.gossip) return panel("Routing", h("div.empty", null, "This server is alone. Servers on one PostgreSQL that know each other (", h("code", null, "--peers"), ") show here how requests are routed."), { id: "routing" });
  return panel(["Routing ", h("small", null, cluster.coordinator ? "each request goes to the server that serves it best" : "servers wake each other, requests stay where they came")], [
    diagram(cluster),
    table(ctx, {
      id: "routing", label: "Servers", rows: cluster.servers, key: (row) => row.server_id, sort: "Server",
      columns: [
        { name: "Server", by: (row) => row.server_id, cell: (row) => [owner(row.server_id, row.url), row.own ? badge("this one") : null] },
        { name: "State", cell: (row) => [badge(row.healthy ? "healthy" : "not heard", row.healthy ? "ok" : "bad"), row.draining ? badge("draining", "warn") : null] },
        { name: "Load", number: true, by: (row) => row.load_score, cell: (row) => [row.load_score, " ", bar(row.load_score, row.load_score > 0.8 ? "bad" : "")] },
        { name: "Circuit", cell: (row) => stateBadge(row.circuit?.state ?? "–") },
        { name: "Forwarded", number: true, by: (row) => row.forwarded ?? 0, cell: (row) => [count(row.forwarded ?? 0), row.forward_failures ? h("small.bad-text", null, ` ${count(row.forward_failures)} failed`) : null] },
        { name: "Affinities", number: true, minor: true, by: (row) => row.affinities ?? 0, cell: (row) => count(row.affinities ?? 0) },
        { name: "Waiting groups", number: true, minor: true, by: (row) => row.waiting_groups ?? 0, cell: (row) => count(row.waiting_groups ?? 0) },
        { name: "Silent", number: true, minor: true, cell: (row) => duration(row.silent_ms ?? 0) },
        ctx.may("admin") && { name: "", cell: (/** @type {any} */ row) => h("button.small", { type: "button", onclick: () => drainServer(ctx, row) }, row.draining ? "Undrain" : "Drain") },
      ],
    }),
    cluster.affinities.busiest.length ? facts(cluster.affinities.busiest.map((/** @type {any} */ one) => [one.key, h("span", null, owner(one.server_id), h("small", null, ` ${plural(one.requests, "request")}`))])) : null,
    cluster.peers.some((/** @type {any} */ peer) => !peer.heard) ? h("div.inside", null, cluster.peers.filter((/** @type {any} */ peer) => !peer.heard).map((/** @type {any} */ peer) => h("div.banner.bad", { key: peer.peer }, h("b", null, peer.peer), ` is not heard: ${peer.reason ?? "nothing came from it"}`))) : null], { id: "routing" });
}

/** This server in the middle, the others around it; a line is as wide as what was forwarded. */
/** @param {any} cluster */
function diagram(cluster) {
  const others = cluster.servers.filter((/** @type {any} */ one) => !one.own);
  const own = cluster.servers.find((/** @type {any} */ one) => one.own);
  if (!others.length) return null;
  const most = Math.max(1, ...others.map((/** @type {any} */ one) => one.forwarded ?? 0));
  const height = Math.max(120, others.length * 54);
  const parts = others.map((/** @type {any} */ one, /** @type {number} */ index) => {
    const y = (height / others.length) * (index + 0.5);
    const wide = 1.5 + 8 * ((one.forwarded ?? 0) / most);
    return [svg("path", { class: `route ${one.circuit?.state ?? ""}${one.healthy ? "" : " dead"}`, "stroke-width": wide, d: `M180 ${height / 2}C300 ${height / 2} 300 ${y} 420 ${y}` }), svg("rect", { class: `node ${one.healthy ? "" : "failed"}`, x: 420, y: y - 20, width: 178, height: 40, rx: 8 }), svg("text", { x: 432, y: y - 2 }, one.server_id.slice(0, 22)), svg("text.small", { x: 432, y: y + 13 }, `load ${one.load_score}, ${count(one.forwarded ?? 0)} sent`)];
  });
  return h("div.inside.scroll", { tabindex: "0", role: "region", "aria-label": "Where this server forwards requests" }, svg("svg.graph", { viewBox: `0 0 600 ${height}`, width: 600, height }, parts, svg("rect", { class: "node own", x: 2, y: height / 2 - 22, width: 178, height: 44, rx: 8 }), svg("text", { x: 14, y: height / 2 - 3 }, (own?.server_id ?? cluster.server_id).slice(0, 22)), svg("text.small", { x: 14, y: height / 2 + 13 }, `load ${own?.load_score ?? 0}`)));
}

/** @param {Context} ctx @param {any} server */
async function drainServer(ctx, server) {
  const mode = server.draining ? "off" : "on";
  await confirmName({ title: `${mode === "on" ? "Drain" : "Undrain"} ${server.server_id}`, name: server.server_id, action: mode === "on" ? "Drain" : "Undrain", text: mode === "on" ? "Other servers send it no more requests." : "Other servers send it requests again.", submit: async () => { await post(`/api/v1/cluster/${seg(server.server_id)}/drain`, { mode }); toast(`${server.server_id} was asked.`); } });
  ctx.refresh();
}
