// Queues: all of them, worst first.

import { api, learnClock, optional, post, query, serverNow } from "./api.js";
import { points, rangeMs, sparkline } from "./chart.js";
import { form } from "./dialog.js";
import { h } from "./dom.js";
import { ago, count, duration, short } from "./format.js";
import { adjust, go, link } from "./router.js";
import { panel, table, tile } from "./table.js";

/** @typedef {import("./main.js").Context} Context */

const PLOTS_MS = 15_000;

export const title = () => "Queues";

/** @param {Context} ctx */
export async function load(ctx) {
  const { local, signal } = ctx;
  const fleet = await api("/api/v1/fleet", { signal });
  learnClock(fleet.now);
  if (!local.ops || Date.now() - local.ops.at > PLOTS_MS) {
    const answer = await optional(`/api/v1/analytics/queue-ops${query({ from: new Date(serverNow() - rangeMs("1h")).toISOString() })}`, signal);
    /** @type {Map<string, any[]>} */
    const by = new Map();
    for (const row of answer?.series ?? []) by.set(row.queueName, [...(by.get(row.queueName) ?? []), row]);
    local.ops = { at: Date.now(), answer, by };
  }
  return fleet;
}

/** @param {Context} ctx @param {any} fleet */
export function view(ctx, fleet) {
  const { answer, by } = ctx.local.ops;
  /** @type {Map<string, {groups: number, oldest: number, leases: number}>} */
  const groups = new Map();
  for (const group of fleet.groups) {
    const own = groups.get(group.queue) ?? { groups: 0, oldest: 0, leases: 0 };
    groups.set(group.queue, { groups: own.groups + 1, oldest: Math.max(own.oldest, group.totalLag ? group.maxTimeLag : 0), leases: own.leases + group.leases });
  }
  const wanted = (ctx.params.get("name") ?? "").toLowerCase();
  const rows = fleet.queues.filter((/** @type {any} */ row) => `${row.name} ${row.namespace} ${row.task}`.toLowerCase().includes(wanted));
  const sum = (/** @type {string} */ name) => rows.reduce((/** @type {number} */ all, /** @type {any} */ row) => all + row.messages[name], 0);
  const ops = (/** @type {string} */ name) => points(by.get(name) ?? [], (row) => row.bucket, answer?.bucketMinutes ?? 1, answer?.timeRange ?? { from: "", to: "" }).rows;
  const lately = (/** @type {string} */ name, /** @type {string} */ of) => {
    const last = ops(name).slice(-6, -1);
    return last.reduce((all, row) => all + (row?.[of] ?? 0), 0) / Math.max(1, last.length * 60);
  };
  const of = (/** @type {any} */ row) => groups.get(row.name) ?? { groups: 0, oldest: 0, leases: 0 };
  return [
    h("div.head", null, h("h1", null, "Queues"), h("div.tools", null, ctx.may("write") ? h("button", { type: "button", onclick: () => create(ctx) }, "New queue") : null)),
    h("div.tiles", null, tile("Queues", count(rows.length)), tile("Partitions", short(rows.reduce((/** @type {number} */ all, /** @type {any} */ row) => all + row.partitions, 0))), tile("Depth", short(sum("pending"))), tile("In work", short(sum("processing"))),
      tile("Completed", short(sum("completed"))), tile("Dead letters", short(sum("deadLetter")), { tone: sum("deadLetter") ? "warn" : "", href: link("dead-letters") })),
    panel("All queues", [
      h("div.filters", null, h("label", null, "Name, namespace or task", h("input", { type: "search", value: ctx.params.get("name") ?? "", oninput: (/** @type {any} */ event) => adjust({ name: event.target.value }) }))),
      table(ctx, {
        id: "queues", label: "All queues", rows, key: (row) => row.name, sort: "-Depth",
        empty: wanted ? "No queue has this in its name." : ["There is no queue yet. The first push makes one: ", h("code", null, `baton push orders '{"number": 1}'`)],
        columns: [
          { name: "Queue", by: (row) => row.name, cell: (row) => h("a.cut", { href: link("queues", row.name), title: row.name }, row.name) },
          { name: "Depth", number: true, by: (row) => row.messages.pending, cell: (row) => count(row.messages.pending) },
          { name: "In work", number: true, by: (row) => row.messages.processing, cell: (row) => count(row.messages.processing), help: "Messages that consumers hold" },
          { name: "Oldest", number: true, by: (row) => of(row).oldest, cell: (row) => (of(row).oldest ? h("span", { class: of(row).oldest > 600 ? "bad-text" : "" }, duration(of(row).oldest * 1000)) : h("span.muted", null, "–")), help: "Age of the oldest message that a group has not finished" },
          { name: "Groups", number: true, by: (row) => of(row).groups, cell: (row) => count(of(row).groups) },
          { name: "Dead", number: true, by: (row) => row.messages.deadLetter, cell: (row) => (row.messages.deadLetter ? h("a.warn-text", { href: link("dead-letters", { queue: row.name }) }, count(row.messages.deadLetter)) : h("span.muted", null, "0")) },
          { name: "In /s", number: true, minor: true, by: (row) => lately(row.name, "pushMessages"), cell: (row) => short(Math.round(lately(row.name, "pushMessages") * 10) / 10), help: "Pushed per second, over the last five minutes" },
          { name: "Out /s", number: true, minor: true, by: (row) => lately(row.name, "ackSuccess"), cell: (row) => short(Math.round(lately(row.name, "ackSuccess") * 10) / 10), help: "Acked per second, over the last five minutes" },
          { name: "Pushed, 1 h", minor: true, cell: (row) => sparkline(ops(row.name).map((one) => one?.pushMessages ?? 0), "one", "pushed in the last hour") },
          { name: "Partitions", number: true, minor: true, by: (row) => row.partitions, cell: (row) => count(row.partitions) },
          { name: "Namespace", minor: true, by: (row) => row.namespace, cell: (row) => h("span.muted", null, row.namespace || "–") },
          { name: "Age", number: true, minor: true, by: (row) => -Date.parse(row.createdAt), cell: (row) => h("span.muted", null, ago(row.createdAt, serverNow())) },
        ],
      }),
    ], { id: "all-queues" }),
  ];
}

/** @param {Context} ctx */
async function create(ctx) {
  const made = await form({
    title: "New queue", action: "Create",
    fields: [
      { name: "queue", label: "Name", required: true },
      { name: "namespace", label: "Namespace" },
      { name: "leaseTime", label: "Lease, in seconds", type: "number", value: 300, hint: "How long a consumer may hold what it popped." },
      { name: "retryLimit", label: "Retries before a dead letter", type: "number", value: 3 },
    ],
    submit: ({ queue, namespace, leaseTime, retryLimit }) => post("/api/v1/configure", { queue, ...(namespace ? { namespace } : {}), options: { leaseTime, retryLimit } }),
  });
  ctx.refresh();
  if (made?.queue) go("queues", made.queue);
}
