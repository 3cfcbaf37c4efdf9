// Jobs: the queues with their limits, and the jobs that a filter finds.

import { api, optional, post, put, query, seg, serverNow } from "./api.js";
import { attempt, form, toast } from "./dialog.js";
import { h } from "./dom.js";
import { brief, count, duration, full, moment, plural, short } from "./format.js";
import { owner } from "./lease.js";
import { adjust, go, link } from "./router.js";
import { badge, panel, stateBadge, table, tile } from "./table.js";

/** @typedef {import("./main.js").Context} Context */

export const STATES = ["scheduled", "pending", "dispatched", "running", "cancelling", "completed", "failed", "timed_out", "cancelled"];
const PAGE = 50;
const PAGES_MAX = 8;
const FILTERS = ["state", "queue", "jobType", "tag", "scheduleId", "correlationId", "q"];

export const title = () => "Jobs";

/** The filter in the address. */
/** @param {Context} ctx */
const filterOf = (ctx) => Object.fromEntries(FILTERS.map((name) => [name, ctx.params.get(name)]).filter(([, value]) => value));

/** @param {Context} ctx */
export async function load(ctx) {
  const { local, signal } = ctx;
  const [queues, workers] = await Promise.all([api("/api/v1/job-queues", { signal }), optional("/api/v1/workers", signal)]);
  const wanted = local.shown ?? PAGE;
  /** @type {any[]} */
  const jobs = [];
  /** @type {string | null} */
  let cursor = null;
  // A page may be short, or empty, and still name a next one.
  for (let page = 0; page < PAGES_MAX && jobs.length < wanted; page++) {
    const answer = /** @type {any} */ (await api(`/api/v1/jobs${query({ ...filterOf(ctx), limit: wanted - jobs.length, cursor })}`, { signal }));
    jobs.push(...answer.jobs);
    cursor = answer.nextCursor;
    if (!cursor) break;
  }
  return { queues: queues.queues, workers: workers?.workers ?? [], jobs, more: cursor !== null };
}

/** @param {Context} ctx @param {any} data */
export function view(ctx, { queues, workers, jobs, more }) {
  const { local } = ctx;
  const sum = (/** @type {string[]} */ ...states) => queues.reduce((/** @type {number} */ all, /** @type {any} */ row) => all + states.reduce((own, state) => own + (row.counts[state] ?? 0), 0), 0);
  const names = new Map(workers.map((/** @type {any} */ one) => [one.workerId, one.name]));
  const chosen = ctx.params.get("state") ?? "";
  const state = (/** @type {string} */ name, /** @type {string} */ states, /** @type {string} */ tone) => {
    const number = sum(...states.split(","));
    return tile(name, short(number), { href: link("jobs", { ...filterOf(ctx), state: chosen === states ? "" : states }), tone: number ? tone : "" });
  };
  const field = (/** @type {string} */ label, /** @type {string} */ name) => h("label", { key: name }, label, h("input", { type: "search", value: ctx.params.get(name) ?? "", onchange: (/** @type {any} */ event) => adjust({ [name]: event.target.value }) }));
  const pick = (/** @type {string} */ label, /** @type {string} */ name, /** @type {string[]} */ values) => h("label", { key: name }, label, h("select", { onchange: (/** @type {any} */ event) => adjust({ [name]: event.target.value }) }, h("option", { value: "" }, "All"), [...new Set([...values, ...(ctx.params.get(name) ? [ctx.params.get(name) ?? ""] : [])])].map((value) => h("option", { key: value, value, selected: value === ctx.params.get(name) }, value.replace(/_/g, " ")))));
  const bulk = ctx.may("write") ? [h("button", { type: "button", onclick: () => change(ctx, "retry") }, "Retry all that fit"), h("button.danger", { type: "button", onclick: () => change(ctx, "cancel") }, "Cancel all that fit")] : null;
  return [
    h("div.head", null, h("h1", null, "Jobs"), h("div.tools", null, ctx.may("push") ? h("button", { type: "button", onclick: () => enqueue(ctx) }, "Enqueue") : null)),
    h("div.tiles", null, state("Scheduled", "scheduled", ""), state("Waiting", "pending,dispatched", ""), state("Running", "running,cancelling", "ok"), state("Completed", "completed", ""), state("Failed", "failed,timed_out", "bad"), state("Cancelled", "cancelled", "")),
    queueTable(ctx, queues),
    panel(["Jobs ", h("small", null, "newest first")], [
      h("div.filters", null, pick("State", "state", STATES), pick("Queue", "queue", queues.map((/** @type {any} */ row) => row.name)), field("Type", "jobType"), field("Tag", "tag"), field("Correlation id", "correlationId"), field("Schedule", "scheduleId"), field("Text in type or arguments", "q")),
      table(ctx, {
        id: "jobs", label: "Jobs", rows: jobs, key: (row) => row.jobId, max: 2000, empty: Object.keys(filterOf(ctx)).length ? "No job fits." : "No job was ever enqueued.",
        columns: [
          { name: "Job", cell: (row) => h("a.mono", { href: link("jobs", row.jobId), title: row.jobId }, brief(row.jobId)) },
          { name: "State", by: (row) => row.state, cell: (row) => [stateBadge(row.state), row.waitReason ? h("small", null, ` ${waits(row.waitReason)}`) : null] },
          { name: "Type", by: (row) => row.jobType, cell: (row) => h("span.cut", null, row.jobType) },
          { name: "Queue", by: (row) => row.queue, cell: (row) => h("a", { href: link("jobs", { queue: row.queue }) }, row.queue) },
          { name: "Arguments", minor: true, cell: (row) => h("code.cut", { title: JSON.stringify(row.args) }, JSON.stringify(row.args)) },
          { name: "Worker", minor: true, cell: (row) => (row.workerId ? owner(names.get(row.workerId) ?? row.workerId, row.workerId) : h("span.muted", null, "–")) },
          { name: "Attempts", number: true, minor: true, by: (row) => row.attempts, cell: (row) => count(row.attempts) },
          { name: "Took", number: true, by: (row) => took(row), cell: (row) => (Number.isNaN(took(row)) ? "–" : duration(took(row))) },
          { name: "Accepted", number: true, by: (row) => Date.parse(row.createdAt), cell: (row) => h("span", { title: full(row.createdAt) }, moment(row.createdAt, serverNow())) },
        ],
      }),
      more ? h("button.more", { type: "button", onclick: () => { local.shown = (local.shown ?? PAGE) + 100; ctx.refresh(); } }, "Show older ones") : null], { id: "jobs", tools: bulk }),
  ];
}

/** Why a job waits. */
/** @param {any} reason */
const waits = (reason) => (typeof reason === "string" ? reason : Object.keys(reason)[0] ?? "").replace(/_/g, " ");

/** @param {any} job */
const took = (job) => (job.startedAt ? (job.endedAt ? Date.parse(job.endedAt) : serverNow()) - Date.parse(job.startedAt) : NaN);

/** @param {Context} ctx @param {any[]} queues */
function queueTable(ctx, queues) {
  const flip = (/** @type {any} */ row) => attempt(() => post(`/api/v1/job-queues/${seg(row.name)}/${row.paused ? "resume" : "pause"}`), `${row.name} ${row.paused ? "goes on" : "is paused"}.`).then(ctx.refresh);
  return panel("Queues of jobs", table(ctx, {
    id: "job-queues", label: "Queues of jobs", rows: queues, key: (row) => row.name, sort: "-Waiting", empty: "The first job makes its queue.",
    columns: [
      { name: "Queue", by: (row) => row.name, cell: (row) => [h("a.cut", { href: link("jobs", { queue: row.name }) }, row.name), row.paused ? [" ", badge("paused", "warn")] : null] },
      { name: "Waiting", number: true, by: (row) => (row.counts.pending ?? 0) + (row.counts.dispatched ?? 0), cell: (row) => count((row.counts.pending ?? 0) + (row.counts.dispatched ?? 0)) },
      { name: "Oldest", number: true, by: (row) => row.oldestMs, cell: (row) => (row.oldestMs ? duration(row.oldestMs) : "–") },
      { name: "Running", number: true, by: (row) => row.counts.running ?? 0, cell: (row) => [count(row.counts.running ?? 0), row.concurrency ? h("small", null, ` of ${count(row.concurrency)}`) : null] },
      { name: "Scheduled", number: true, minor: true, by: (row) => row.counts.scheduled ?? 0, cell: (row) => count(row.counts.scheduled ?? 0) },
      { name: "Completed", number: true, minor: true, by: (row) => row.counts.completed ?? 0, cell: (row) => count(row.counts.completed ?? 0) },
      { name: "Failed", number: true, by: (row) => row.counts.failed ?? 0, cell: (row) => h("span", { class: row.counts.failed ? "bad-text" : "muted" }, count((row.counts.failed ?? 0) + (row.counts.timed_out ?? 0))) },
      { name: "Rate", minor: true, cell: (row) => (row.rateLimit ? `${count(row.rateLimit.count)} per ${duration(row.rateLimit.perMs)}` : h("span.muted", null, "no limit")) },
      ctx.may("write") && { name: "", cell: (/** @type {any} */ row) => h("div.tools", null, h("button.small", { type: "button", onclick: () => flip(row) }, row.paused ? "Resume" : "Pause"), h("button.small", { type: "button", onclick: () => limits(ctx, row) }, "Limits")) },
    ],
  }), { id: "job-queues" });
}

/** @param {Context} ctx @param {any} row */
async function limits(ctx, row) {
  await form({
    title: `Limits of ${row.name}`, action: "Save",
    fields: [
      { name: "concurrency", label: "Jobs at once", type: "number", value: row.concurrency ?? "", hint: "Left empty, no limit." },
      { name: "count", label: "Starts per span", type: "number", value: row.rateLimit?.count ?? "", hint: "Left empty, no limit." },
      { name: "perMs", label: "Span, in milliseconds", type: "number", value: row.rateLimit?.perMs ?? 1000 },
      { name: "weight", label: "Weight", type: "number", value: row.weight ?? "", hint: "Its share against other queues." },
      { name: "dlq", label: "Keep dead letters", type: "checkbox", value: row.dlq },
    ],
    submit: async ({ concurrency, count: starts, perMs, weight, dlq }) => {
      await put(`/api/v1/job-queues/${seg(row.name)}`, { paused: row.paused, dlq, concurrency, weight, ...(starts ? { rateLimit: { count: starts, perMs } } : {}) });
      toast("Saved.");
    },
  });
  ctx.refresh();
}

/** @param {Context} ctx */
async function enqueue(ctx) {
  const made = await form({
    title: "Enqueue a job", action: "Enqueue",
    fields: [
      { name: "jobType", label: "Type", required: true }, { name: "queue", label: "Queue", value: ctx.params.get("queue") ?? "default" },
      { name: "args", label: "Arguments, JSON", type: "textarea", value: "{}" }, { name: "delayMs", label: "Delay, in milliseconds", type: "number" },
      { name: "priority", label: "Priority", type: "number" }, { name: "maxRetries", label: "Retries", type: "number", value: 3 }, { name: "tags", label: "Tags, separated by commas" },
    ],
    submit: ({ jobType, queue, args, delayMs, priority, maxRetries, tags }) => post("/api/v1/jobs", {
      jobType, queue, args: JSON.parse(args || "null"), ...(delayMs ? { delayMs } : {}), ...(priority === null ? {} : { priority }), ...(maxRetries === null ? {} : { retry: { maxRetries } }),
      ...(tags ? { tags: tags.split(",").map((/** @type {string} */ tag) => tag.trim()).filter(Boolean) } : {}),
    }),
  });
  ctx.refresh();
  if (made?.jobId) go("jobs", made.jobId);
}

/** Cancels or retries all that the filter finds, after counting them. */
/** @param {Context} ctx @param {"cancel" | "retry"} action */
async function change(ctx, action) {
  const filter = filterOf(ctx);
  const wanted = Object.keys(filter).length ? { filter } : { all: true };
  const run = async (/** @type {boolean} */ dryRun) => {
    let [matched, changed, cursor] = [0, 0, null];
    do {
      const answer = await post("/api/v1/jobs:bulk", { action, dryRun, ...wanted, ...(cursor ? { cursor } : {}) });
      [matched, changed, cursor] = [matched + answer.matched, changed + answer.changed, answer.nextCursor];
    } while (cursor);
    return { matched, changed };
  };
  const word = action === "cancel" ? "Cancel" : "Retry";
  /** @type {{matched: number}} */
  let found = { matched: 0 };
  if ((await attempt(async () => { found = await run(true); }, "Counted.")) === undefined && !found.matched) {
    toast("No job fits.", "bad");
    return;
  }
  const name = String(filter["queue"] ?? "all jobs");
  await form({
    title: `${word} ${plural(found.matched, "job")}`, action: `${word} the jobs`, danger: true, text: `Counted without touching one: ${plural(found.matched, "job")} ${Object.entries(filter).map(([key, value]) => `${key} ${value}`).join(", ") || "in all"}.`,
    fields: [{ name: "typed", label: `Type ${name} to confirm`, required: true }],
    submit: async ({ typed }) => {
      if (typed !== name) throw new Error(`that is not ${name}`);
      toast(`${plural((await run(false)).changed, "job")} changed.`);
    },
  });
  ctx.refresh();
}

