// Records, locks and timers: listed, looked at, edited, released.

import { api, learnClock, optional, post, put, query, remove, seg, serverNow } from "./api.js";
import { confirmName, form, toast } from "./dialog.js";
import { h } from "./dom.js";
import { ago, count, duration, full, moment } from "./format.js";
import { lease, owner } from "./lease.js";
import { adjust, link } from "./router.js";
import { badge, choices, facts, panel, table, tile } from "./table.js";
import { payload } from "./viewer.js";

/** @typedef {import("./main.js").Context} Context */

const TABS = /** @type {[string, string][]} */ ([["records", "Records"], ["locks", "Locks"], ["timers", "Timers"], ["traces", "Traces"]]);
const PAGE = 100;

export const title = () => "Records, locks and timers";
export const every = 3000;

/** @param {Context} ctx */
const tabOf = (ctx) => ctx.params.get("tab") ?? "records";

/** The path of a record. Its key may have slashes, which are part of the path. */
/** @param {string} namespace @param {string} key */
const place = (namespace, key) => `/api/v1/kv/${seg(namespace)}/${seg(key)}`;

/** @param {Context} ctx */
export async function load(ctx) {
  const { params, signal, local } = ctx;
  const locks = await api("/api/v1/locks?limit=500", { signal });
  learnClock(locks.now);
  const tab = tabOf(ctx);
  if (tab === "locks") return { tab, locks };
  if (tab === "traces") return { tab, locks, traces: await optional("/api/v1/traces/names?limit=200", signal) };
  if (tab === "timers") {
    const fleet = await api("/api/v1/fleet", { signal });
    const queues = fleet.queues.map((/** @type {any} */ row) => row.name).slice(0, 200);
    const queue = params.get("queue") ?? queues[0] ?? null;
    return { tab, locks, queues, queue, timers: queue ? await optional(`/api/v1/timers/${seg(queue)}${query({ prefix: params.get("prefix"), limit: local.shown ?? PAGE })}`, signal) : null };
  }
  const { namespaces } = await api("/api/v1/kv", { signal });
  const namespace = params.get("ns") ?? namespaces[0] ?? null;
  const page = namespace ? await api(`/api/v1/kv/${seg(namespace)}${query({ prefix: params.get("prefix"), limit: local.shown ?? PAGE })}`, { signal }) : null;
  return { tab, locks, namespaces, namespace, page };
}

/** @param {Context} ctx @param {any} data */
export function view(ctx, data) {
  const { tab } = data;
  const body = /** @type {Record<string, (ctx: Context, data: any) => any>} */ ({ records, locks, timers, traces })[tab] ?? records;
  return [
    h("div.head", null, h("h1", null, "Records, locks and timers")),
    choices("Part", TABS, tab, (value) => adjust({ tab: value === "records" ? null : value, prefix: null, ns: null, queue: null })),
    body(ctx, data),
  ];
}

/** @param {Context} ctx @param {any} data */
function records(ctx, { namespaces, namespace, page }) {
  const { local, params } = ctx;
  const rows = page?.rows ?? [];
  const chosen = rows.find((/** @type {any} */ row) => row.key === local.key);
  const tools = ctx.may("write") ? h("button", { type: "button", onclick: () => edit(ctx, namespace, null) }, "New record") : null;
  if (!namespace) return panel("Records", h("div.empty", null, "There is no record."), { id: "records", tools });
  return h("div", { class: chosen ? "columns wide" : "stack" },
    panel(["Records ", h("small", null, namespace)], [
      h("div.filters", null,
        h("label", null, "Namespace", h("select", { onchange: (/** @type {any} */ event) => adjust({ ns: event.target.value, prefix: null }) }, [...new Set([...namespaces, namespace])].map((name) => h("option", { key: name, value: name, selected: name === namespace }, name)))),
        h("label", null, "Key begins with", h("input", { type: "search", value: params.get("prefix") ?? "", onchange: (/** @type {any} */ event) => adjust({ prefix: event.target.value }) }))),
      table(ctx, {
        id: "records", label: "Records", rows, key: (row) => row.key, selected: (row) => row.key === local.key, max: 2000, empty: "No record fits.",
        columns: [
          { name: "Key", by: (row) => row.key, cell: (row) => h("button.quiet.small.mono.text", { type: "button", onclick: () => { local.key = row.key; ctx.redraw(); } }, row.key) },
          { name: "Value", cell: (row) => h("code.cut", null, JSON.stringify(row.value)) },
          { name: "Version", number: true, by: (row) => row.version, cell: (row) => h("code.token", null, row.version) },
          { name: "Expires in", number: true, by: (row) => Date.parse(row.expiresAt) || Infinity, cell: (row) => (row.expiresAt ? duration(Date.parse(row.expiresAt) - serverNow()) : h("span.muted", null, "never")) },
          { name: "Written", number: true, minor: true, by: (row) => Date.parse(row.updatedAt), cell: (row) => moment(row.updatedAt, serverNow()) },
        ],
      }), page.truncated ? h("button.more", { type: "button", onclick: () => { local.shown = (local.shown ?? PAGE) + 200; ctx.refresh(); } }, "Show more") : null], { id: "records", tools }),
    chosen ? panel("Record", [facts([["Key", h("code", null, chosen.key)], ["Version", chosen.version], ["Written", full(chosen.updatedAt)], ["Expires", chosen.expiresAt ? full(chosen.expiresAt) : "never"]]), h("div.inside", null, payload(chosen.value))], { id: "record", tools: ctx.may("write") ? [h("button.small", { type: "button", onclick: () => edit(ctx, namespace, chosen) }, "Edit"), h("button.small.danger", { type: "button", onclick: () => drop(ctx, namespace, chosen) }, "Delete")] : badge("read only") }) : null);
}

/** @param {Context} ctx @param {string | null} namespace @param {any} row */
async function edit(ctx, namespace, row) {
  await form({
    title: row ? `Edit ${row.key}` : "New record", action: "Save", text: row ? `Only if its version is still ${row.version}.` : "Only if there is none with this key.",
    fields: [
      ...(row ? [] : [{ name: "ns", label: "Namespace", value: namespace ?? "app", required: true }, { name: "key", label: "Key", required: true }]),
      { name: "value", label: "Value, JSON", type: /** @type {const} */ ("textarea"), value: row ? JSON.stringify(row.value, null, 2) : "{}" },
      { name: "ttl", label: "Lives for, in seconds", type: /** @type {const} */ ("number"), value: row?.expiresAt ? Math.max(1, Math.round((Date.parse(row.expiresAt) - serverNow()) / 1000)) : "", hint: "Left empty, for ever." },
    ],
    submit: async ({ ns, key, value, ttl }) => {
      const answer = await put(place(ns ?? namespace, key ?? row.key), { value: JSON.parse(value), expect: row?.version ?? 0, ...(ttl ? { ttlSeconds: ttl } : { forever: true }) });
      if (!answer.applied) throw new Error(answer.reason === "version" || answer.reason === "exists" ? "it was written meanwhile: look again" : `not applied: ${answer.reason}`);
      toast("Saved.");
    },
  });
  ctx.refresh();
}

/** @param {Context} ctx @param {string} namespace @param {any} row */
async function drop(ctx, namespace, row) {
  await confirmName({ title: `Delete ${row.key}`, name: row.key, action: "Delete", text: `From ${namespace}, for good.`, submit: async () => { await remove(place(namespace, row.key)); toast("The record is gone."); } });
  ctx.refresh();
}

/** @param {Context} ctx @param {any} data */
function locks(ctx, { locks: page }) {
  return panel(["Locks ", h("small", null, `${count(page.permits.length)} permits held`)], [table(ctx, {
    id: "locks", label: "Locks", rows: page.permits, key: (row) => `${row.name} ${row.slot}`, sort: "Ends in", max: 500, empty: "No lock is held.",
    columns: [
      { name: "Lock", by: (row) => row.name, cell: (row) => [h("b.cut", null, row.name), row.slot ? h("small", null, ` permit ${row.slot}`) : null] },
      { name: "Owner", by: (row) => row.owner, cell: (row) => owner(row.owner) },
      { name: "Token", number: true, by: (row) => row.token, cell: (row) => h("code.token", null, row.token) },
      { name: "Held for", number: true, minor: true, by: (row) => -Date.parse(row.since), cell: (row) => ago(row.since, serverNow()) },
      { name: "Ends in", by: (row) => Date.parse(row.expiresAt), cell: (row) => lease(Date.parse(row.expiresAt), Date.parse(row.expiresAt) - Date.parse(row.renewedAt)) },
      ctx.may("write") && { name: "", cell: (/** @type {any} */ row) => h("button.small", { type: "button", onclick: () => release(ctx, row) }, "Release") },
    ],
  }), page.nextAfter ? h("p.hint.inside", null, "There are more than the 500 that are shown.") : null], { id: "locks" });
}

/** @param {Context} ctx @param {any} permit */
async function release(ctx, permit) {
  await confirmName({ title: `Release ${permit.name}`, name: permit.name, action: "Release", text: `${permit.owner} still holds it. The next caller gets it under a higher token.`, submit: async () => {
    const { results } = await post("/api/v1/locks", { operations: [{ op: "release", name: permit.name, token: permit.token, slot: permit.slot }] });
    if (!results[0].released) throw new Error("it has changed hands or was renewed meanwhile: look again");
    toast(`${permit.name} is free.`);
  } });
  ctx.refresh();
}

/** @param {Context} ctx @param {any} data */
function timers(ctx, { queues, queue, timers: page }) {
  if (!queue) return panel("Timers", h("div.empty", null, "There is no queue, so there is no timer."), { id: "timers" });
  return panel(["Timers ", h("small", null, "messages that are pushed later")], [
    h("div.filters", null,
      h("label", null, "Queue", h("select", { onchange: (/** @type {any} */ event) => adjust({ queue: event.target.value }) }, [...new Set([...queues, queue])].map((name) => h("option", { key: name, value: name, selected: name === queue }, name)))),
      h("label", null, "Key begins with", h("input", { type: "search", value: ctx.params.get("prefix") ?? "", onchange: (/** @type {any} */ event) => adjust({ prefix: event.target.value }) }))),
    table(ctx, {
      id: "timers", label: "Timers", rows: page?.rows ?? [], key: (row) => row.timerKey, sort: "Fires in", max: 2000, empty: "No timer is set on this queue.",
      columns: [
        { name: "Key", by: (row) => row.timerKey, cell: (row) => h("code.cut", null, row.timerKey) },
        { name: "Partition", minor: true, by: (row) => row.partition, cell: (row) => h("a", { href: link("queues", queue, { tab: "messages", partition: row.partition }) }, row.partition) },
        { name: "Fires in", number: true, by: (row) => Date.parse(row.deliverAt), cell: (row) => h("span", { title: full(row.deliverAt) }, duration(Date.parse(row.deliverAt) - serverNow())) },
        { name: "Set", number: true, minor: true, by: (row) => Date.parse(row.createdAt), cell: (row) => moment(row.createdAt, serverNow()) },
        { name: "Tries", number: true, by: (row) => row.attempts, cell: (row) => [count(row.attempts), row.lastError ? h("small.bad-text", { title: row.lastError }, " failed") : null] },
        ctx.may("write") && { name: "", cell: (/** @type {any} */ row) => h("button.small.danger", { type: "button", onclick: () => cancel(ctx, queue, row) }, "Cancel") },
      ],
    }), page?.truncated ? h("button.more", { type: "button", onclick: () => { ctx.local.shown = (ctx.local.shown ?? PAGE) + 200; ctx.refresh(); } }, "Show more") : null], { id: "timers" });
}

/** @param {Context} ctx @param {string} queue @param {any} row */
async function cancel(ctx, queue, row) {
  await confirmName({ title: `Cancel ${row.timerKey}`, name: row.timerKey, action: "Cancel the timer", text: "Its message is not pushed.", submit: async () => { await remove(`/api/v1/timers/${seg(queue)}/${seg(row.timerKey)}`); toast("The timer is gone."); } });
  ctx.refresh();
}

/** @param {Context} ctx @param {any} data */
function traces(ctx, { traces: page }) {
  const rows = page?.trace_names ?? [];
  return h("div.stack", null, h("div.tiles", null, tile("Names", count(page?.total ?? 0))), panel(["Traces ", h("small", null, "what consumers said about messages, by name")], table(ctx, {
    id: "traces", label: "Traces", rows, key: (row) => row.trace_name, sort: "-Last", empty: "No consumer has left a trace.",
    columns: [
      { name: "Name", by: (row) => row.trace_name, cell: (row) => h("b.cut", null, row.trace_name) },
      { name: "Traces", number: true, by: (row) => row.trace_count, cell: (row) => count(row.trace_count) },
      { name: "Messages", number: true, by: (row) => row.message_count, cell: (row) => count(row.message_count) },
      { name: "Last", number: true, by: (row) => Date.parse(row.last_seen), cell: (row) => moment(row.last_seen, serverNow()) },
    ],
  }), { id: "traces" }));
}
