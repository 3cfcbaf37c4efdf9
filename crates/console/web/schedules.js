// Schedules: what fires when, in words and on a strip of past and coming fires; one of them with everything it can be told.

import { api, learnClock, optional, post, put, query, remove, seg, serverNow } from "./api.js";
import { cronWords } from "./cron.js";
import { attempt, confirm, confirmName, form, toast } from "./dialog.js";
import { h } from "./dom.js";
import { axisTime, brief, count, duration, full, moment, plural } from "./format.js";
import { go, link } from "./router.js";
import { badge, facts, panel, stateBadge, table, tile } from "./table.js";
import { payload } from "./viewer.js";

/** @typedef {import("./main.js").Context} Context */

const PAST_MS = 6 * 3_600_000;
const COMING_MS = 18 * 3_600_000;
/** Fires that are drawn one by one on the strip of a schedule. */
const DRAWN_MAX = 150;

/** @param {Context} ctx */
export const title = (ctx) => ctx.path[0] ?? "Schedules";

/** @param {Context} ctx */
export async function load(ctx) {
  const { signal } = ctx;
  learnClock((await optional("/api/v1/resources/overview", signal))?.timestamp);
  if (ctx.path[0]) {
    const [schedule, jobs] = await Promise.all([api(`/api/v1/schedules/${seg(ctx.path[0])}`, { signal }), optional(`/api/v1/jobs${query({ scheduleId: ctx.path[0], limit: 50 })}`, signal)]);
    return { schedule, jobs: jobs?.jobs ?? [] };
  }
  const page = await api(`/api/v1/schedules${query({ limit: ctx.local.shown ?? 200 })}`, { signal });
  return { schedules: page.schedules, more: page.nextCursor };
}

/** When it fires, in words. */
/** @param {any} one */
function words(one) {
  if (one.kind === "interval") return `every ${duration(one.everyMs)}`;
  if (one.kind === "once") return `once, ${full(one.at)}`;
  const text = cronWords(one.cron);
  return [text ?? one.cron, one.timeZone && one.timeZone !== "UTC" ? `, ${one.timeZone}` : text ? ", UTC" : ""].join("");
}

/** @param {Context} ctx @param {any} data */
export function view(ctx, data) {
  return ctx.path[0] ? detail(ctx, data) : all(ctx, data);
}

/** @param {Context} ctx @param {any} data */
function all(ctx, { schedules, more }) {
  const now = serverNow();
  const next = (/** @type {any} */ row) => (row.enabled === false ? Infinity : Date.parse(row.nextFires[0]) || Infinity);
  const soonest = Math.min(...schedules.map(next));
  const troubled = schedules.filter((/** @type {any} */ row) => row.problem).length;
  return [
    h("div.head", null, h("h1", null, "Schedules"), h("div.tools", null, ctx.may("write") ? h("button", { type: "button", onclick: () => edit(ctx, null) }, "New schedule") : null)),
    h("div.tiles", null, tile("Schedules", count(schedules.length)), tile("Paused", count(schedules.filter((/** @type {any} */ row) => row.enabled === false).length)), tile("Next fire", Number.isFinite(soonest) ? duration(soonest - now) : "–"), tile("With a problem", count(troubled), { tone: troubled ? "bad" : "" }), tile("Misfires", count(schedules.reduce((/** @type {number} */ sum, /** @type {any} */ row) => sum + row.misfires, 0)))),
    schedules.length ? panel(["Day ", h("small", null, "fired before now, due after")], strip(schedules, now), { id: "day" }) : null,
    panel("All schedules", [table(ctx, {
      id: "schedules", label: "All schedules", rows: schedules, key: (row) => row.id, sort: "Next", max: 500, empty: "There is no schedule.",
      columns: [
        { name: "Schedule", by: (row) => row.id, cell: (row) => [h("a.cut", { href: link("schedules", row.id) }, row.id), row.enabled === false ? [" ", badge("paused", "warn")] : null, row.problem ? [" ", badge("problem", "bad")] : null] },
        { name: "Fires", cell: (row) => h("span", { title: row.cron ?? "" }, words(row)) },
        { name: "Next", number: true, by: next, cell: (row) => (Number.isFinite(next(row)) ? h("span", { title: full(row.nextFires[0]) }, `in ${duration(next(row) - now)}`) : h("span.muted", null, "–")) },
        { name: "Last", number: true, minor: true, by: (row) => Date.parse(row.lastFire?.firedAt) || 0, cell: (row) => (row.lastFire ? h("a", { href: row.lastFire.jobId ? link("jobs", row.lastFire.jobId) : link("schedules", row.id) }, moment(row.lastFire.firedAt, now)) : h("span.muted", null, "never")) },
        { name: "Job", minor: true, by: (row) => row.job.jobType, cell: (row) => h("span.cut", null, row.job.jobType, h("small", null, ` in ${row.job.queue ?? "default"}`)) },
        { name: "Jobs", number: true, minor: true, by: (row) => row.jobs, cell: (row) => count(row.jobs), help: "Jobs made so far" },
        { name: "Left out", number: true, minor: true, by: (row) => row.overlapped, cell: (row) => count(row.overlapped), help: "Fires that made no job because of the last one" },
        ctx.may("write") && { name: "", cell: (/** @type {any} */ row) => actions(ctx, row) },
      ],
    }), more ? h("button.more", { type: "button", onclick: () => { ctx.local.shown = 1000; ctx.refresh(); } }, "Show more") : null], { id: "schedules" }),
  ];
}

/** @param {Context} ctx @param {any} row */
function actions(ctx, row) {
  const flip = () => attempt(() => post(`/api/v1/schedules/${seg(row.id)}/${row.enabled === false ? "resume" : "pause"}`), `${row.id} ${row.enabled === false ? "fires again" : "is paused"}.`).then(ctx.refresh);
  const trigger = async () => {
    const made = await confirm({ title: `Fire ${row.id} now`, text: "One job besides those that are due.", action: "Fire", submit: () => post(`/api/v1/schedules/${seg(row.id)}/trigger`) });
    if (made) toast(made.waiting ? "It fires when the last job has ended." : "It has fired.");
    ctx.refresh();
  };
  return h("div.tools", null, h("button.small", { type: "button", onclick: trigger }, "Fire now"), h("button.small", { type: "button", onclick: flip }, row.enabled === false ? "Resume" : "Pause"));
}

/** Past and coming fires of several schedules, a line for each. */
/** @param {any[]} schedules @param {number} now */
function strip(schedules, now) {
  const [from, to] = [now - PAST_MS, now + COMING_MS];
  const at = (/** @type {number} */ time) => `${(((time - from) / (to - from)) * 100).toFixed(2)}%`;
  const rows = schedules.slice(0, 14).map((one) => {
    const [coming, dense] = one.enabled === false ? [[], false] : fires(one, now, to);
    const past = one.lastFire ? [Date.parse(one.lastFire.firedAt)].filter((time) => time >= from) : [];
    const often = dense ? h("i.dense", { title: words(one), style: { left: at(coming[0] ?? now), width: `${(((to - (coming[0] ?? now)) / (to - from)) * 100).toFixed(2)}%` } }) : null;
    return h("div.line", { key: one.id }, h("a.cut", { href: link("schedules", one.id) }, one.id), h("div.track", { role: "img", "aria-label": dense ? words(one) : `${words(one)}; ${plural(coming.length, "fire")} in the coming ${duration(COMING_MS)}` },
      often, past.map((/** @type {number} */ time) => h("i", { class: "past", key: `p${time}`, title: `fired ${full(time)}`, style: { left: at(time) } })), dense ? null : coming.map((/** @type {number} */ time) => h("i", { key: `${time}`, title: full(time), style: { left: at(time) } })), h("s", { style: { left: at(now) } })));
  });
  const labels = [0, 0.25, 0.5, 0.75, 1].map((step) => h("span", { style: { left: `${step * 100}%` } }, axisTime(from + step * (to - from), 3_600_000)));
  return h("div.day", null, rows, h("div.line", { "aria-hidden": "true" }, h("span"), h("div.hours", null, labels)));
}

/** The coming fires as far as the server has told them, and whether they are too many to be drawn one by one. Those of an
 * interval follow from the first. */
/** @param {any} one @param {number} now @param {number} to @returns {[number[], boolean]} */
function fires(one, now, to) {
  const told = one.nextFires.map((/** @type {string} */ time) => Date.parse(time)).filter((/** @type {number} */ time) => time >= now && time <= to);
  if (one.kind !== "interval" || !told.length) return [told, false];
  if ((to - told[0]) / one.everyMs > DRAWN_MAX) return [told, true];
  const all = [];
  for (let time = told[0]; time <= to; time += one.everyMs) all.push(time);
  return [all, false];
}

/** @param {Context} ctx @param {any} data */
function detail(ctx, { schedule: one, jobs }) {
  const now = serverNow();
  const tools = ctx.may("write") ? [actions(ctx, one), h("button", { type: "button", onclick: () => backfill(one) }, "Back-fill"), h("button", { type: "button", onclick: () => edit(ctx, one) }, "Edit"), h("button.danger", { type: "button", onclick: () => destroy(one) }, "Delete")] : badge("read only");
  return [
    h("div.head", null, h("h1", null, h("a.crumbs", { href: link("schedules") }, "Schedules / "), one.id), one.enabled === false ? badge("paused", "warn") : badge("active", "ok"), h("div.tools", null, tools)),
    one.problem ? h("div.banner.bad", { key: "problem" }, h("b", null, "Problem: "), one.problem) : null,
    h("div.tiles", null, tile("Next fire", one.enabled === false || !one.nextFires[0] ? "–" : `in ${duration(Date.parse(one.nextFires[0]) - now)}`, { note: one.nextFires[0] ? full(one.nextFires[0]) : "" }), tile("Last fire", one.lastFire ? `${duration(now - Date.parse(one.lastFire.firedAt))} ago` : "never", { note: one.lastOutcome ?? "" }), tile("Jobs", count(one.jobs)), tile("Misfires", count(one.misfires)), tile("Left out", count(one.overlapped))),
    panel("Day", strip([one], now), { id: "day" }),
    h("div.columns", null,
      panel("Calendar", facts([["Fires", words(one)], ["Expression", one.cron ? h("code", null, one.cron) : null], ["Time zone", `${one.timeZone} (${one.tzdb})`], ["Misfire", one.misfire], ["Grace", duration(one.misfireGraceMs)], ["Overlap", one.overlap], ["Clock forward", one.dstGap], ["Clock back", one.dstOverlap], ["Jitter", duration(one.jitterMs)], ["From", one.startAt ? full(one.startAt) : null], ["Until", one.endAt ? full(one.endAt) : null], ["Revision", one.revision], ["Changed", full(one.updatedAt)]]), { id: "calendar" }),
      panel("Next fires", h("ol.moves", null, one.nextFires.map((/** @type {string} */ time) => h("li", { key: time }, h("time", null, `in ${duration(Date.parse(time) - now)}`), h("div", null, full(time))))), { id: "next" }),
      panel("Job", h("div.inside", null, payload(one.job)), { id: "job" })),
    panel(["Its jobs ", h("small", null, "newest first")], table(ctx, {
      id: "jobs", label: "Its jobs", rows: jobs, key: (row) => row.jobId, empty: "It has made no job that is still known.",
      columns: [{ name: "Job", cell: (row) => h("a.mono", { href: link("jobs", row.jobId), title: row.jobId }, brief(row.jobId)) }, { name: "State", cell: (row) => stateBadge(row.state) }, { name: "For", number: true, cell: (row) => moment(row.scheduledFor, now) }, { name: "Made", number: true, cell: (row) => moment(row.createdAt, now) }],
    }), { id: "jobs" }),
  ];
}

/** What of a schedule may be sent back. */
const OWN = ["kind", "cron", "everyMs", "at", "timeZone", "startAt", "endAt", "jitterMs", "misfire", "misfireGraceMs", "overlap", "dstGap", "dstOverlap", "enabled", "job"];

/** @param {Context} ctx @param {any} one */
async function edit(ctx, one) {
  const given = one ? Object.fromEntries(OWN.filter((name) => one[name] !== undefined && one[name] !== null).map((name) => [name, one[name]])) : { kind: "cron", cron: "0 3 * * *", timeZone: "UTC", job: { jobType: "cleanup", queue: "default", args: {} } };
  const made = await form({
    title: one ? `Edit ${one.id}` : "New schedule", action: "Save",
    fields: [...(one ? [] : [{ name: "id", label: "Id", required: true }]), { name: "text", label: "Schedule, JSON", type: /** @type {const} */ ("textarea"), value: JSON.stringify(given, null, 2), hint: "kind is cron (cron, timeZone), interval (everyMs) or once (at)." }],
    submit: async ({ id, text }) => put(`/api/v1/schedules/${seg(one?.id ?? id)}${query({ revision: one?.revision ?? 0 })}`, JSON.parse(text)),
  });
  if (made) {
    toast(`${made.id} is saved.`);
    go("schedules", made.id);
  }
  ctx.refresh();
}

/** @param {any} one */
async function backfill(one) {
  await form({
    title: `Back-fill ${one.id}`, action: "Count", text: "Fires for a stretch of the past. The nominal times are counted first; nothing is made before you have seen them.",
    fields: [{ name: "from", label: "From, in this browser's time zone", type: "datetime-local", required: true }, { name: "to", label: "To", type: "datetime-local", required: true }],
    submit: async ({ from, to }) => {
      const span = { from: new Date(from).toISOString(), to: new Date(to).toISOString() };
      const { fires: found, truncated } = await post(`/api/v1/schedules/${seg(one.id)}/backfill`, { ...span, dryRun: true });
      if (!found.length) throw new Error("it would not have fired in that time");
      setTimeout(() => confirmName({ title: `Make ${plural(found.length, "job")}`, name: one.id, action: "Fire", text: `From ${full(found[0])} to ${full(found.at(-1))}${truncated ? "; there would be more" : ""}.`, submit: async () => { const { jobIds } = await post(`/api/v1/schedules/${seg(one.id)}/backfill`, span); toast(`${plural(jobIds.length, "job")} made.`); } }));
    },
  });
}

/** @param {any} one */
async function destroy(one) {
  const done = await confirmName({ title: `Delete ${one.id}`, name: one.id, action: "Delete", text: "It does not fire any more. Its jobs stay.", submit: () => remove(`/api/v1/schedules/${seg(one.id)}`) });
  if (done) go("schedules");
}
