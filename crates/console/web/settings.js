// Settings and health: how this server is, what it is set to, what it uses.

import { api, headers, learnClock, optional, post, query, serverNow } from "./api.js";
import { chart, points, RANGES, rangeMs, roundUpBytes } from "./chart.js";
import { confirmName, toast } from "./dialog.js";
import { h } from "./dom.js";
import { bytes, count, duration, rate } from "./format.js";
import { adjust } from "./router.js";
import { badge, choices, facts, panel, table, tile } from "./table.js";

/** @typedef {import("./main.js").Context} Context */

const SLOW_MS = 10_000;

export const title = () => "Settings and health";
export const every = 3000;

/** The samples of a Prometheus page without labels. */
/** @param {string} text @returns {Record<string, number>} */
function samples(text) {
  return Object.fromEntries(text.split("\n").filter((line) => /^[a-z_]+ [\d.eE+-]+$/.test(line)).map((line) => {
    const [name = "", value] = line.split(" ");
    return [name, Number(value)];
  }));
}

/** @param {Context} ctx */
export async function load(ctx) {
  const { local, signal } = ctx;
  const health = await api("/health", { signal });
  if (!local.slow || Date.now() - local.slow.at > SLOW_MS || local.slow.range !== ctx.range) {
    const from = new Date(serverNow() - rangeMs(ctx.range)).toISOString();
    const [settings, system, metrics, maintenance] = await Promise.all([ctx.may("admin") ? optional("/api/v1/settings", signal) : null, optional(`/api/v1/analytics/system-metrics${query({ from })}`, signal), prometheus(signal), ctx.may("admin") ? optional("/api/v1/system/maintenance", signal) : null]);
    local.slow = { at: Date.now(), range: ctx.range, settings, system, metrics, maintenance };
    learnClock(system?.timeRange?.to);
  }
  return { health, ...local.slow };
}

/** @param {AbortSignal} signal @returns {Promise<Record<string, number>>} */
async function prometheus(signal) {
  const response = await fetch("/metrics/prometheus", { headers: headers(), signal }).catch(() => null);
  return response?.ok ? samples(await response.text()) : {};
}

/** @param {Context} ctx @param {any} data */
export function view(ctx, { health, settings, system, metrics, maintenance }) {
  const number = (/** @type {string} */ name) => metrics[name] ?? NaN;
  const perCommit = number("baton_store_commit_seconds_sum") / number("baton_store_commit_seconds_count");
  return [
    h("div.head", null, h("h1", null, "Settings and health"), h("div.tools", null, choices("Time range", RANGES, ctx.range, (value) => adjust({ range: value === "1h" ? null : value })))),
    (health.warnings ?? []).map((/** @type {string} */ text) => h("div.banner", { key: text }, text)),
    h("div.tiles", null,
      tile("Server", health.status, { tone: health.status === "healthy" ? "ok" : "bad", note: health.node }), tile("Store", health.database, { tone: health.database === "connected" ? "ok" : "bad", note: health.error ?? "" }),
      tile("Version", health.version), tile("Up", duration(number("queen_uptime_seconds") * 1000)), tile("Memory", bytes(number("queen_process_resident_memory_bytes"))),
      tile("Disk", bytes(number("baton_store_disk_bytes")), { note: "of the store" }), tile("Connections", count(health.connections)), tile("Waiting pops", count(health.popWait?.waiters)),
      tile("Commits", count(number("baton_store_commits_total")), { note: Number.isFinite(perCommit) ? `${duration(perCommit * 1000)} each` : "" })),
    system ? plots(system) : null,
    h("div.columns", null, upkeep(ctx, maintenance),
      panel("Inside", facts([["Bodies under way", bytes(health.bodyBytesInFlight)], ["Remembered ids", count(number("baton_store_remembered_ids"))], ["Decisions", count(number("baton_store_operations_total"))], ["Forced to disk", count(number("baton_store_syncs_total"))], ["Decisions run again", count(number("baton_store_repeats_total"))], ["Wait lists", count(health.popWait?.groupsTracked)], ["Timers fired", count(number("baton_timers_fired_total"))], ["Messages given up", count(number("baton_expired_messages_total"))]]), { id: "inside" })),
    settings ? settingTable(ctx, settings.settings) : panel("Settings", h("div.empty", null, "Only an admin may read the settings."), { id: "settings" }),
    h("p.hint", null, "Every route is described at ", h("a", { href: "/api/docs" }, "/api/docs"), "."),
  ];
}

/** @param {any} system */
function plots(system) {
  return h("div.columns", null, system.replicas.map((/** @type {any} */ node) => {
    const { times, rows } = points(node.timeSeries, (row) => row.timestamp, system.bucketMinutes, system.timeRange);
    const cpu = (/** @type {string} */ of) => rows.map((row) => (row ? (row.metrics.cpu[of].avg / 60e6) * 100 : null));
    return [
      h("section.panel", { key: `cpu ${node.hostname}` }, chart({ title: `Processor of ${node.hostname}`, unit: "% of a core", times, format: rate, series: [{ name: "Own code", tone: "one", values: cpu("user_us") }, { name: "Kernel", tone: "three", values: cpu("system_us") }] })),
      h("section.panel", { key: `memory ${node.hostname}` }, chart({ title: `Memory of ${node.hostname}`, unit: "bytes", times, format: bytes, round: roundUpBytes, series: [{ name: "Resident", tone: "two", values: rows.map((row) => row?.metrics.memory.rss_bytes.avg ?? null) }] })),
    ];
  }));
}

/** @param {Context} ctx @param {any} modes */
function upkeep(ctx, modes) {
  if (!modes) return panel("Maintenance", h("div.empty", null, "Only an admin may read and set the modes."), { id: "maintenance" });
  const flip = (/** @type {string} */ what, /** @type {string} */ path, /** @type {boolean} */ on, /** @type {string} */ text) => async () => {
    await confirmName({ title: what, name: "maintenance", action: on ? "Switch on" : "Switch off", text, submit: async () => { await post(path, { enabled: on }); toast(`${what}: done.`); } });
    ctx.local.slow = null;
    ctx.refresh();
  };
  const line = (/** @type {string} */ name, /** @type {boolean} */ on, /** @type {string} */ path, /** @type {string} */ help) => h("tr", { key: name }, h("th", { scope: "row" }, name), h("td", null, on ? badge("on", "warn") : badge("off", "ok")), h("td.wrap.muted", null, help), h("td", null, h("button.small", { type: "button", onclick: flip(name, path, !on, help) }, on ? "Switch off" : "Switch on")));
  return panel("Maintenance", [h("div.table", { tabindex: "0", role: "region", "aria-label": "Maintenance" }, h("table", null, h("tbody", null,
    line("Spool pushes", modes.maintenanceMode, "/api/v1/system/maintenance", "Pushes wait on the disk and drain in order, each once."),
    line("Stop pops", modes.popMaintenanceMode, "/api/v1/system/maintenance/pop", "No consumer gets anything until it is switched off.")))),
    facts([["Spooled messages", count(modes.bufferedMessages)], ["Draining", modes.draining ? "yes" : "no"]])], { id: "maintenance" });
}

/** @param {Context} ctx @param {any[]} all */
function settingTable(ctx, all) {
  const text = (ctx.local.find ?? "").toLowerCase();
  const changed = ctx.params.get("only") === "changed";
  const rows = all.filter((row) => `${row.name} ${row.help}`.toLowerCase().includes(text) && (!changed || !row.isDefault));
  return panel(["Settings ", h("small", null, `${count(all.filter((row) => !row.isDefault).length)} of ${count(all.length)} differ from the default`)], [
    h("div.filters", null, h("label", null, "Name or purpose", h("input", { type: "search", oninput: (/** @type {any} */ event) => { ctx.local.find = event.target.value; ctx.redraw(); } })), choices("Which", [["", "All"], ["changed", "Changed"]], changed ? "changed" : "", (value) => adjust({ only: value }))),
    table(ctx, {
      id: "settings", label: "Settings", rows, key: (row) => row.name, sort: "Setting", max: 300, empty: "No setting fits.",
      columns: [
        { name: "Setting", by: (row) => row.name, cell: (row) => h("code", null, row.name) },
        { name: "Value", by: (row) => row.value, cell: (row) => [h("code.cut", { title: row.value }, row.value || "none"), row.isDefault ? null : [" ", badge("changed", "busy")]] },
        { name: "Default", minor: true, cell: (row) => h("code.cut.muted", { title: row.default }, row.default || "none") },
        { name: "What it is for", minor: true, cell: (row) => h("div.wrap.muted", null, row.help.replace(/`/g, "")) },
      ],
    })], { id: "settings" });
}
