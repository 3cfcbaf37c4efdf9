// Dead letters, of queues and of jobs: grouped by their error, looked at, replayed and purged one by one or all that fit.

import { api, learnClock, optional, post, query, remove, seg, serverNow } from "./api.js";
import { confirm, confirmName, form, toast } from "./dialog.js";
import { h } from "./dom.js";
import { brief, count, full, groupName, moment, plural } from "./format.js";
import { adjust, link } from "./router.js";
import { choices, facts, panel, table, tile } from "./table.js";
import { payload } from "./viewer.js";

/** @typedef {import("./main.js").Context} Context */

const ERRORS_EVERY_MS = 10_000;
const ERRORS_PAGES_MAX = 20;
const PAGE = 100;

export const title = () => "Dead letters";
export const every = 3000;

/** @param {Context} ctx */
const isJobs = (ctx) => ctx.params.get("of") === "jobs";

/** @param {Context} ctx */
export async function load(ctx) {
  const { local, params, signal } = ctx;
  const fleet = await api("/api/v1/fleet", { signal });
  learnClock(fleet.now);
  if (isJobs(ctx)) {
    const page = await api(`/api/v1/dead-letters${query({ limit: local.shown ?? PAGE })}`, { signal });
    return { fleet, jobs: page.jobs, more: page.nextCursor };
  }
  const filter = { queue: params.get("queue"), consumerGroup: params.get("group") };
  const key = JSON.stringify(filter);
  if (local.errors?.key !== key || Date.now() - local.errors.at > ERRORS_EVERY_MS) local.errors = { key, at: Date.now(), ...(await errors(filter, signal)) };
  const page = await api(`/api/v1/dlq${query({ ...filter, limit: params.has("error") ? 1000 : local.shown ?? PAGE })}`, { signal });
  return { fleet, letters: page.messages, total: page.total };
}

/** All errors of the letters that fit, the most frequent first. */
/** @param {Record<string, any>} filter @param {AbortSignal} signal */
async function errors(filter, signal) {
  /** @type {Map<string, any>} */
  const found = new Map();
  let [cursor, counted] = [/** @type {string | null} */ (null), 0];
  for (let page = 0; page < ERRORS_PAGES_MAX; page++) {
    const answer = await api(`/api/v1/dlq/errors${query({ ...filter, cursor })}`, { signal });
    counted += answer.counted;
    for (const row of answer.errors) {
      const own = found.get(row.error ?? "");
      if (own) Object.assign(own, { count: own.count + row.count, lastFailedAt: own.lastFailedAt > row.lastFailedAt ? own.lastFailedAt : row.lastFailedAt });
      else found.set(row.error ?? "", { ...row });
    }
    cursor = answer.nextCursor;
    if (!cursor) break;
  }
  return { rows: [...found.values()].sort((a, b) => b.count - a.count), counted, partial: cursor !== null };
}

/** @param {Context} ctx @param {any} data */
export function view(ctx, data) {
  const { fleet } = data;
  const dead = fleet.queues.reduce((/** @type {number} */ sum, /** @type {any} */ row) => sum + row.messages.deadLetter, 0);
  return [
    h("div.head", null, h("h1", null, "Dead letters"), h("div.tools", null, choices("Of", [["queues", "Of queues"], ["jobs", "Of jobs"]], isJobs(ctx) ? "jobs" : "queues", (value) => adjust({ of: value === "jobs" ? value : null, queue: null, error: null })))),
    data.jobs ? ofJobs(ctx, data) : ofQueues(ctx, data, dead),
  ];
}

/** @param {Context} ctx @param {any} data @param {number} dead */
function ofQueues(ctx, { fleet, letters, total }, dead) {
  const { local, params } = ctx;
  const { rows, partial } = local.errors ?? { rows: [], partial: false };
  const queues = fleet.queues.filter((/** @type {any} */ row) => row.messages.deadLetter);
  const groups = [...new Set(fleet.groups.map((/** @type {any} */ row) => row.name))].sort();
  const chosenError = params.get("error");
  const shown = chosenError === null ? letters : letters.filter((/** @type {any} */ row) => (row.errorMessage ?? "") === chosenError);
  const filter = { queue: params.get("queue"), consumerGroup: params.get("group"), error: chosenError };
  const words = [filter.queue ? `in ${filter.queue}` : "in all queues", filter.consumerGroup ? `of ${groupName(filter.consumerGroup)}` : "", filter.error ? `with “${filter.error}”` : ""].filter(Boolean).join(" ");
  const bulk = h("div.tools", null,
    ctx.may("write") ? h("button", { type: "button", disabled: !letters.length, onclick: () => replayAll(ctx, filter, words) }, "Replay all") : null,
    ctx.may("admin") ? h("button.danger", { type: "button", disabled: !letters.length, onclick: () => purgeAll(ctx, filter, words) }, "Purge all") : null);
  const select = (/** @type {string} */ label, /** @type {string} */ name, /** @type {any[]} */ values, /** @type {(value: any) => string} */ text) =>
    h("label", null, label, h("select", { onchange: (/** @type {any} */ event) => adjust({ [name]: event.target.value, error: null }) }, h("option", { value: "" }, "All"), values.map((value) => h("option", { key: value, value, selected: value === params.get(name) }, text(value)))));
  return h("div.stack", null,
    h("div.tiles", null, tile("Dead letters", count(dead), { tone: dead ? "warn" : "ok" }), tile("Queues with some", count(queues.length)), tile("Errors", partial ? `${count(rows.length)}+` : count(rows.length), { note: filter.queue ?? "all queues" })),
    panel(["Errors ", h("small", null, "most frequent first")], [
      h("div.filters", null, select("Queue", "queue", [...new Set([...queues.map((/** @type {any} */ row) => row.name), ...(filter.queue ? [filter.queue] : [])])], String), select("Group", "group", groups, groupName)),
      table(ctx, {
        id: "errors", label: "Errors", rows, key: (row) => row.error ?? "", selected: (row) => (row.error ?? "") === chosenError, empty: "There is no dead letter. Good.",
        columns: [
          { name: "Error", cell: (row) => h("div.wrap", null, h("button.quiet.small.text", { type: "button", "aria-pressed": String((row.error ?? "") === chosenError), onclick: () => adjust({ error: (row.error ?? "") === chosenError ? null : row.error ?? "" }) }, row.error || "(no text)")) },
          { name: "Letters", number: true, by: (row) => row.count, cell: (row) => count(row.count) },
          { name: "First", number: true, minor: true, by: (row) => Date.parse(row.firstFailedAt), cell: (row) => moment(row.firstFailedAt, serverNow()) },
          { name: "Last", number: true, by: (row) => Date.parse(row.lastFailedAt), cell: (row) => moment(row.lastFailedAt, serverNow()) },
          { name: "Example", minor: true, cell: (row) => h("a", { href: link("queues", row.sample.queue) }, row.sample.queue) },
        ],
      })], { id: "errors" }),
    h("div", { class: local.chosen ? "columns wide" : "stack" },
      panel(["Letters ", h("small", null, `${words}, newest first`)], [table(ctx, {
        id: "letters", label: "Dead letters", rows: shown, key: (row) => `${row.partitionId} ${row.offset} ${row.consumerGroup}`, selected: (row) => local.chosen?.id === row.id, max: 1000, empty: "No dead letter fits.",
        columns: [
          { name: "Transaction", cell: (row) => h("button.quiet.small.mono", { type: "button", title: row.transactionId, onclick: () => { local.chosen = row; ctx.redraw(); } }, brief(row.transactionId)) },
          { name: "Queue", by: (row) => row.queue, cell: (row) => [h("a", { href: link("queues", row.queue) }, row.queue), h("small", null, ` / ${row.partition}`)] },
          { name: "Group", minor: true, by: (row) => row.consumerGroup, cell: (row) => groupName(row.consumerGroup) },
          { name: "Error", minor: true, cell: (row) => h("span.cut", { title: row.errorMessage }, row.errorMessage ?? "–") },
          { name: "Tries", number: true, by: (row) => row.retryCount, cell: (row) => count(row.retryCount) },
          { name: "Failed", number: true, by: (row) => Date.parse(row.failedAt), cell: (row) => h("span", { title: full(row.failedAt) }, moment(row.failedAt, serverNow())) },
          ctx.may("write") && { name: "", cell: (/** @type {any} */ row) => h("button.small", { type: "button", onclick: () => replayOne(ctx, row) }, "Replay") },
        ],
      }), chosenError === null && total > shown.length ? h("button.more", { type: "button", onclick: () => { local.shown = (local.shown ?? PAGE) + 200; ctx.refresh(); } }, `Show older ones: ${count(shown.length)} of ${count(total)} are shown`) : null], { id: "letters", tools: bulk }),
      local.chosen ? letter(ctx, local.chosen) : null));
}

/** @param {Context} ctx @param {any} row */
function letter(ctx, row) {
  const close = () => {
    ctx.local.chosen = null;
    ctx.redraw();
  };
  return panel("Letter", [facts([["Transaction", h("code", null, row.transactionId)], ["Queue", `${row.queue} / ${row.partition}`], ["Group", groupName(row.consumerGroup)], ["Tries", row.retryCount], ["Stored", full(row.createdAt)], ["Failed", full(row.failedAt)], ["Producer", row.producerSub]]),
    h("div.inside", null, h("p.bad-text", null, row.errorMessage ?? "No error was told."), row.dataOmitted ? h("p.hint", null, "The payload is too large for the list.") : payload(row.data))], { id: "letter", tools: [
    ctx.may("admin") ? h("button.small.danger", { type: "button", onclick: () => purgeOne(ctx, row, close) }, "Purge") : null, h("button.small.quiet", { type: "button", onclick: close }, "Close")] });
}

/** @param {Context} ctx @param {any} row */
async function replayOne(ctx, row) {
  await confirm({ title: "Replay this letter", text: `It is pushed to ${row.queue} again, and taken from the dead letters.`, action: "Replay", submit: async () => {
    const answer = await post(`/api/v1/messages/${seg(row.partitionId)}/${seg(row.transactionId)}/retry`);
    toast(answer.result === "duplicate" ? "The queue has this message already." : "It waits again.");
  } });
  ctx.local.errors = null;
  ctx.refresh();
}

/** @param {Context} ctx @param {any} row @param {() => void} close */
async function purgeOne(ctx, row, close) {
  const around = { from: row.failedAt, to: new Date(Date.parse(row.failedAt) + 1).toISOString() };
  const filter = { queue: row.queue, partition: row.partition, consumerGroup: row.consumerGroup, ...around };
  const { matched } = await post("/api/v1/dlq:purge", { filter, dryRun: true });
  await confirmName({ title: "Purge this letter", name: row.queue, action: "Purge", text: matched > 1 ? `${count(matched)} letters of this partition failed in the same millisecond; all of them go.` : "It is gone for good.", submit: async () => {
    await post("/api/v1/dlq:purge", { filter });
    close();
    toast("The letter is gone.");
  } });
  ctx.local.errors = null;
  ctx.refresh();
}

/** The filter as the bulk routes want it. */
/** @param {Record<string, string | null>} filter */
function body(filter) {
  const set = Object.fromEntries(Object.entries(filter).filter(([, value]) => value !== null && value !== ""));
  return Object.keys(set).length ? { filter: set } : { all: true };
}

/** How many letters fit, without touching one. */
/** @param {string} route @param {any} wanted */
async function matching(route, wanted) {
  let [sum, cursor] = [0, null];
  do {
    const answer = await post(route, { ...wanted, dryRun: true, ...(cursor ? { cursor } : {}) });
    [sum, cursor] = [sum + answer.matched, answer.nextCursor];
  } while (cursor);
  return sum;
}

/** @param {Context} ctx @param {Record<string, string | null>} filter @param {string} words */
async function replayAll(ctx, filter, words) {
  const wanted = body(filter);
  const matched = await matching("/api/v1/dlq:replay", wanted);
  await form({
    title: `Replay ${plural(matched, "letter")}`, action: "Replay", text: `Counted without touching one: ${plural(matched, "letter")} ${words} would be pushed again.`,
    fields: [{ name: "rate", label: "At most so many per second", type: "number", value: "", hint: "Left empty, as fast as the server can." }],
    submit: async ({ rate }) => {
      let [done, cursor, stopped] = [0, null, null];
      do {
        const answer = await post("/api/v1/dlq:replay", { ...wanted, ...(rate ? { ratePerSec: rate } : {}), ...(cursor ? { cursor } : {}) });
        [done, cursor, stopped] = [done + answer.replayed + answer.duplicates, answer.nextCursor, answer.stopped];
      } while (cursor && !stopped);
      toast(stopped ? `${plural(done, "letter")} replayed, then it stopped: ${stopped}` : `${plural(done, "letter")} replayed.`, stopped ? "bad" : "ok");
    },
  });
  ctx.local.errors = null;
  ctx.refresh();
}

/** @param {Context} ctx @param {Record<string, string | null>} filter @param {string} words */
async function purgeAll(ctx, filter, words) {
  const wanted = body(filter);
  const matched = await matching("/api/v1/dlq:purge", wanted);
  await confirmName({ title: `Purge ${plural(matched, "letter")}`, name: filter.queue ?? "all queues", action: "Purge", text: `Counted without touching one: ${plural(matched, "letter")} ${words} would be gone for good.`, submit: async () => {
    let [done, cursor] = [0, null];
    do {
      const answer = await post("/api/v1/dlq:purge", { ...wanted, ...(cursor ? { cursor } : {}) });
      [done, cursor] = [done + answer.purged, answer.nextCursor];
    } while (cursor);
    toast(`${plural(done, "letter")} are gone.`);
  } });
  ctx.local.errors = null;
  ctx.refresh();
}

/** @param {Context} ctx @param {any} data */
function ofJobs(ctx, { jobs, more }) {
  const error = (/** @type {any} */ job) => [job.error?.type, job.error?.message].filter(Boolean).join(": ") || "(no text)";
  /** @type {Map<string, any>} */
  const by = new Map();
  for (const job of jobs) by.set(error(job), { error: error(job), count: (by.get(error(job))?.count ?? 0) + 1, last: by.get(error(job))?.last ?? job.deadAt ?? job.endedAt });
  const chosen = ctx.params.get("error");
  const shown = chosen === null ? jobs : jobs.filter((/** @type {any} */ job) => error(job) === chosen);
  return h("div.stack", null,
    panel(["Errors ", h("small", null, `of the ${count(jobs.length)} that are shown`)], table(ctx, {
      id: "job-errors", label: "Errors", rows: [...by.values()], key: (row) => row.error, sort: "-Jobs", selected: (row) => row.error === chosen, empty: "No job has failed for good. Good.",
      columns: [
        { name: "Error", cell: (row) => h("div.wrap", null, h("button.quiet.small.text", { type: "button", "aria-pressed": String(row.error === chosen), onclick: () => adjust({ error: row.error === chosen ? null : row.error }) }, row.error)) },
        { name: "Jobs", number: true, by: (row) => row.count, cell: (row) => count(row.count) },
        { name: "Last", number: true, by: (row) => Date.parse(row.last), cell: (row) => moment(row.last, serverNow()) },
      ],
    }), { id: "job-errors" }),
    panel(["Jobs ", h("small", null, "newest first")], [table(ctx, {
      id: "job-letters", label: "Jobs that failed for good", rows: shown, key: (row) => row.jobId, max: 1000, empty: "No job has failed for good.",
      columns: [
        { name: "Job", cell: (row) => h("a.mono", { href: link("jobs", row.jobId), title: row.jobId }, brief(row.jobId)) },
        { name: "Type", by: (row) => row.jobType, cell: (row) => row.jobType },
        { name: "Queue", by: (row) => row.queue, cell: (row) => h("a", { href: link("jobs", { queue: row.queue }) }, row.queue) },
        { name: "Error", minor: true, cell: (row) => h("span.cut", { title: error(row) }, error(row)) },
        { name: "Attempts", number: true, by: (row) => row.attempts, cell: (row) => count(row.attempts) },
        { name: "Failed", number: true, by: (row) => Date.parse(row.deadAt), cell: (row) => moment(row.deadAt, serverNow()) },
        ctx.may("write") && { name: "", cell: (/** @type {any} */ row) => h("div.tools", null, h("button.small", { type: "button", onclick: () => replayJob(ctx, row) }, "Replay"), h("button.small.danger", { type: "button", onclick: () => buryJob(ctx, row) }, "Purge")) },
      ],
    }), more ? h("button.more", { type: "button", onclick: () => { ctx.local.shown = Math.min(1000, (ctx.local.shown ?? PAGE) + 200); ctx.refresh(); } }, "Show older ones") : null], { id: "job-letters", tools: ctx.may("write") ? h("button", { type: "button", disabled: !jobs.length, onclick: () => replayJobs(ctx) }, "Replay all") : null }));
}

/** @param {Context} ctx @param {any} job */
async function replayJob(ctx, job) {
  await confirm({ title: `Replay ${job.jobType}`, text: `Job ${job.jobId} gets another try.`, action: "Replay", submit: async () => { await post(`/api/v1/dead-letters/${seg(job.jobId)}/replay`); toast("It waits again."); } });
  ctx.refresh();
}

/** @param {Context} ctx @param {any} job */
async function buryJob(ctx, job) {
  await confirmName({ title: `Purge ${job.jobType}`, name: job.jobType, action: "Purge", text: `Job ${job.jobId} is taken from the dead letters; the job itself stays as long as failed jobs do.`, submit: async () => { await remove(`/api/v1/dead-letters/${seg(job.jobId)}`); toast("It is not listed any more."); } });
  ctx.refresh();
}

/** @param {Context} ctx */
async function replayJobs(ctx) {
  const found = await optional("/api/v1/job-queues");
  const failed = (found?.queues ?? []).reduce((/** @type {number} */ sum, /** @type {any} */ row) => sum + (row.counts.failed ?? 0) + (row.counts.timed_out ?? 0), 0);
  await form({
    title: "Replay dead letters of jobs", action: "Replay", text: `There are ${plural(failed, "failed job")}. At most 1,000 are replayed at once.`,
    fields: [{ name: "jobType", label: "Only of this type" }, { name: "queue", label: "Only of this queue" }, { name: "rate", label: "At most so many per second", type: "number" }],
    submit: async ({ jobType, queue, rate }) => {
      const filter = { ...(jobType ? { jobType } : {}), ...(queue ? { queue } : {}) };
      const answer = await post("/api/v1/dead-letters:replay", { ...(Object.keys(filter).length ? { filter } : { all: true }), ...(rate ? { ratePerSec: rate } : {}) });
      toast(`${plural(answer.replayed, "job")} replayed${answer.more ? ", and there are more" : ""}.`);
    },
  });
  ctx.refresh();
}
