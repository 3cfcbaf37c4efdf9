// One job: what it is doing, its attempts as a timeline, its log as it is written, what it depends on.

import { api, ApiError, headers, optional, post, query, seg, serverNow } from "./api.js";
import { confirm, confirmName, toast } from "./dialog.js";
import { h, svg } from "./dom.js";
import { ago, brief, clock, count, duration, full, moment } from "./format.js";
import { lease, owner } from "./lease.js";
import { isPaused } from "./live.js";
import { go, link } from "./router.js";
import { badge, choices, facts, panel, stateBadge, table, tile } from "./table.js";
import { payload } from "./viewer.js";

/** @typedef {import("./main.js").Context} Context */

const ENDED = ["completed", "failed", "timed_out", "cancelled"];
const LINES_MAX = 2000;
const RELATED_MAX = 12;

/** @param {Context} ctx */
export const title = (ctx) => `Job ${brief(ctx.path[0])}`;

/** @param {Context} ctx */
export async function load(ctx) {
  const { local, signal } = ctx;
  const id = ctx.path[0] ?? "";
  const job = await api(`/api/v1/jobs/${seg(id)}`, { signal });
  const worker = job.workerId && !ENDED.includes(job.state) ? await optional(`/api/v1/workers/${seg(job.workerId)}`, signal) : null;
  if (job.hasResult && local.result === undefined) local.result = await optional(`/api/v1/jobs/${seg(id)}/result`, signal);
  if (!job.hasResult) local.result = undefined;
  if (!local.log) {
    local.log = { lines: [], dropped: 0 };
    void follow(ctx, id);
  }
  if (!local.related || !ENDED.includes(job.state)) {
    const parents = await Promise.all(job.dependsOn.slice(0, RELATED_MAX).map((/** @type {string} */ one) => optional(`/api/v1/jobs/${seg(one)}`, signal)));
    const family = job.correlationId ? await optional(`/api/v1/jobs${query({ correlationId: job.correlationId, limit: 50 })}`, signal) : null;
    local.related = { parents: parents.filter(Boolean), children: (family?.jobs ?? []).filter((/** @type {any} */ one) => one.dependsOn.includes(id)) };
  }
  return { job, worker };
}

/** Reads the log as it is written, and goes on after the last line when the connection ends. */
/** @param {Context} ctx @param {string} id */
async function follow(ctx, id) {
  const { local, signal } = ctx;
  let [after, state] = [/** @type {number | null} */ (null), ""];
  while (!signal.aborted) {
    if (!isPaused() && !document.hidden) {
      const page = await api(`/api/v1/jobs/${seg(id)}/logs${query({ after, limit: 500 })}`, { signal }).catch((error) => (error instanceof ApiError ? null : null));
      if (page?.lines.length) {
        local.log.lines = [...local.log.lines, ...page.lines].slice(-LINES_MAX);
        after = page.after;
        ctx.redraw();
      }
      if (page) local.log.dropped = page.dropped;
      state = page?.state ?? state;
      if (page?.more) continue;
    }
    if (!ENDED.includes(state)) await stream(ctx, id, after, (line) => {
      local.log.lines = [...local.log.lines, line].slice(-LINES_MAX);
      after = line.offset;
      ctx.redraw();
    });
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}

/** The live lines of a log, until the stream ends. A stream of the browser's own could not show a token. */
/** @param {Context} ctx @param {string} id @param {number | null} after @param {(line: any) => void} add */
async function stream(ctx, id, after, add) {
  try {
    const response = await fetch(`/api/v1/jobs/${seg(id)}/logs${query({ after })}`, { headers: headers({ accept: "text/event-stream" }), signal: ctx.signal });
    if (!response.ok || !response.body) return;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const events = (text + value).split("\n\n");
      text = events.pop() ?? "";
      for (const event of events) {
        const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n");
        if (!data) continue;
        const line = JSON.parse(data);
        if (line.message !== undefined && line.offset !== undefined && line.offset > (after ?? -1)) {
          after = line.offset;
          add(line);
        }
      }
    }
  } catch {
    // The loop asks again.
  }
}

/** @param {Context} ctx @param {any} data */
export function view(ctx, { job, worker }) {
  const { local } = ctx;
  const now = serverNow();
  const ended = ENDED.includes(job.state);
  const took = job.startedAt ? (job.endedAt ? Date.parse(job.endedAt) : now) - Date.parse(job.startedAt) : NaN;
  const tools = ctx.may("write") ? [
    !ended ? h("button.danger", { type: "button", onclick: () => cancel(ctx, job) }, "Cancel") : null,
    ended && job.state !== "completed" ? h("button", { type: "button", onclick: () => retry(ctx, job) }, "Retry") : null,
    h("button", { type: "button", onclick: () => again(job) }, "Enqueue a copy"),
  ] : badge("read only");
  return [
    h("div.head", null, h("h1", null, h("a.crumbs", { href: link("jobs") }, "Jobs / "), job.jobType), stateBadge(job.state), h("div.tools", null, tools)),
    h("div.tiles", null,
      tile("State", job.state.replace(/_/g, " "), { note: job.waitReason ? JSON.stringify(job.waitReason).replace(/[{}"]/g, "") : "", tone: ["failed", "timed_out"].includes(job.state) ? "bad" : "" }),
      tile("Attempts", count(job.attempts), { note: job.losses ? `${count(job.losses)} lost` : "" }),
      tile(ended ? "Took" : "Runs for", Number.isNaN(took) ? "–" : duration(took), { note: job.timeoutMs ? `at most ${duration(job.timeoutMs)}` : "" }),
      tile("Fence", job.fence, { note: "fencing token" }),
      tile("Age", ago(job.createdAt, now), { note: moment(job.createdAt, now) }),
      job.progress ? tile("Progress", `${Math.round(job.progress.percent)} %`, { note: job.progress.message, more: h("progress", { max: "100", value: job.progress.percent, "aria-label": "Progress" }) }) : null),
    worker && !ended ? panel("Held by", h("div.inside.crown", null, owner(worker.name, worker.workerId), lease(Date.parse(worker.leaseUntil), Date.parse(worker.leaseUntil) - Date.parse(worker.seenAt)), h("small", null, `fence ${job.fence}, slice owned by ${job.owner?.nodeId ?? "no server"}${job.owner ? `, epoch ${job.owner.epoch}` : ""}`)), { id: "held" }) : null,
    job.error && ["failed", "timed_out"].includes(job.state) ? h("div.banner.bad", { key: "error" }, h("b", null, job.error.type || "Error"), " ", job.error.message) : null,
    h("div.columns.wide", null,
      h("div.stack", null, attempts(ctx, job), graph(job, local.related), log(ctx, local.log)),
      h("div.stack", null,
        panel("Arguments", h("div.inside", null, payload(job.args, "Arguments")), { id: "arguments" }),
        local.result !== undefined ? panel("Result", h("div.inside", null, payload(local.result, "Result")), { id: "result" }) : null,
        panel("Facts", facts([["Id", h("code", null, job.jobId)], ["Queue", h("a", { href: link("jobs", { queue: job.queue }) }, job.queue)], ["Priority", job.priority], ["Runs at", job.runAt ? full(job.runAt) : null], ["Retries", job.retry?.maxRetries ?? "–"], ["Unique key", job.uniqueKey], ["Concurrency key", job.concurrencyKey], ["Correlation id", job.correlationId ? h("a", { href: link("jobs", { correlationId: job.correlationId }) }, job.correlationId) : null], ["Tags", job.tags?.length ? job.tags.map((/** @type {string} */ tag) => h("a.badge", { href: link("jobs", { tag }) }, tag)) : null], ["Schedule", job.scheduleId ? h("a", { href: link("schedules", job.scheduleId) }, job.scheduleId) : null]]), { id: "facts" }))),
  ];
}

/** @param {Context} ctx @param {any} job */
function attempts(ctx, job) {
  const rows = job.history;
  const [from, to] = [Date.parse(rows[0]?.startedAt ?? job.createdAt), Math.max(...rows.map((/** @type {any} */ one) => Date.parse(one.endedAt) || serverNow()), 0)];
  const span = Math.max(1, to - from);
  const word = (/** @type {any} */ outcome) => (outcome === null ? "running" : typeof outcome === "string" ? outcome : Object.keys(outcome)[0] ?? "ended");
  const tone = (/** @type {any} */ outcome) => ({ succeeded: "ok", running: "busy", failed: "bad", timed_out: "bad", lost: "warn" })[word(outcome)] ?? "warn";
  const strip = rows.length ? h("div.strip", { role: "img", "aria-label": `${rows.length} attempts over ${duration(span)}` }, rows.map((/** @type {any} */ one) => {
    const end = Date.parse(one.endedAt) || serverNow();
    return h("i", { key: one.executionId, class: tone(one.outcome), title: `${one.number}: ${word(one.outcome)}, ${duration(end - Date.parse(one.startedAt))}`, style: { left: `${((Date.parse(one.startedAt) - from) / span) * 100}%`, width: `${Math.max(0.6, ((end - Date.parse(one.startedAt)) / span) * 100)}%` } });
  })) : null;
  return panel(["Attempts ", h("small", null, rows.length ? `${duration(span)} in all` : "")], [strip, table(ctx, {
    id: "attempts", label: "Attempts", rows: [...rows].reverse(), key: (row) => row.executionId, empty: "No worker has taken it yet.",
    columns: [
      { name: "Attempt", number: true, cell: (row) => count(row.number) },
      { name: "Outcome", cell: (row) => badge(word(row.outcome).replace(/_/g, " "), tone(row.outcome)) },
      { name: "Worker", cell: (row) => owner(row.workerId) },
      { name: "Fence", number: true, cell: (row) => h("code.token", null, String(row.executionId).split(".").at(-1)) },
      { name: "Began", number: true, cell: (row) => moment(row.startedAt, serverNow()) },
      { name: "Took", number: true, cell: (row) => duration((Date.parse(row.endedAt) || serverNow()) - Date.parse(row.startedAt)) },
      { name: "Error", minor: true, cell: (row) => h("span.cut", { title: row.error?.message }, row.error?.message ?? "–") },
    ],
  })], { id: "attempts" });
}

/** @param {Context} ctx @param {any} held */
function log(ctx, held) {
  const levels = ["trace", "debug", "info", "warn", "error"];
  const least = ctx.local.level ?? "trace";
  const lines = held.lines.filter((/** @type {any} */ line) => levels.indexOf(line.level) >= levels.indexOf(least));
  const pick = choices("Least level", [["trace", "All"], ["info", "Info"], ["warn", "Warn"], ["error", "Error"]], least, (value) => { ctx.local.level = value; ctx.redraw(); });
  const body = lines.length
    ? h("ol.log", { tabindex: "0", "aria-label": "Log" }, lines.map((/** @type {any} */ line) => h("li", { key: String(line.offset), class: line.level }, h("time", { title: full(line.at) }, clock(line.at)), h("span", null, line.level), h("code", null, line.message))))
    : h("div.empty", null, held.lines.length ? "No line is as grave as this." : "Nothing was logged.");
  return panel(["Log ", h("small", null, "live")], [body, held.dropped ? h("p.hint.inside", null, `${count(held.dropped)} lines were more than is kept.`) : null], { id: "log", tools: pick });
}

/** What it waits for, itself, and what waits for it. */
/** @param {any} job @param {any} related */
function graph(job, { parents, children }) {
  if (!job.dependsOn.length && !children.length) return null;
  const columns = [parents, [job], children].filter((column) => column.length);
  const [width, height] = [190, 46];
  const rows = Math.max(...columns.map((column) => column.length));
  const place = (/** @type {number} */ column, /** @type {number} */ row, /** @type {number} */ size) => ({ x: column * (width + 44), y: (rows - size) * (height + 10) / 2 + row * (height + 10) });
  const boxes = columns.flatMap((column, x) => column.map((/** @type {any} */ one, /** @type {number} */ y) => {
    const at = place(x, y, column.length);
    return svg("a", { key: one.jobId, href: link("jobs", one.jobId) }, svg("rect", { class: `node ${one.state}${one.jobId === job.jobId ? " own" : ""}`, x: at.x + 1, y: at.y + 1, width: width - 2, height, rx: 8 }), svg("text", { x: at.x + 11, y: at.y + 20 }, one.jobType.slice(0, 24)), svg("text.small", { x: at.x + 11, y: at.y + 37 }, one.state.replace(/_/g, " ")));
  }));
  const arrows = columns.slice(0, -1).flatMap((column, x) => column.flatMap((/** @type {any} */ _, /** @type {number} */ y) => (columns[x + 1] ?? []).map((/** @type {any} */ __, /** @type {number} */ z) => {
    const [from, to] = [place(x, y, column.length), place(x + 1, z, columns[x + 1]?.length ?? 1)];
    const [x1, y1, x2, y2] = [from.x + width, from.y + height / 2, to.x, to.y + height / 2];
    return svg("path.arrow", { d: `M${x1} ${y1}C${x1 + 22} ${y1} ${x2 - 22} ${y2} ${x2} ${y2}` });
  })));
  return panel("Depends on", h("div.inside.scroll", { tabindex: "0", role: "region", "aria-label": "Dependencies" }, svg("svg.graph", { viewBox: `0 0 ${columns.length * (width + 44) - 44} ${rows * (height + 10)}`, width: columns.length * (width + 44) - 44, height: rows * (height + 10) }, arrows, boxes)), { id: "depends" });
}

/** @param {Context} ctx @param {any} job */
async function cancel(ctx, job) {
  await confirmName({ title: `Cancel ${job.jobType}`, name: job.jobType, action: "Cancel the job", text: job.state === "running" ? "Its worker is asked to stop." : "It will not run.", submit: async () => { const answer = await post(`/api/v1/jobs/${seg(job.jobId)}/cancel`); toast(`It is ${answer.state} now.`); } });
  ctx.refresh();
}

/** @param {Context} ctx @param {any} job */
async function retry(ctx, job) {
  await confirm({ title: `Retry ${job.jobType}`, text: "It gets another try, with its attempts counted anew.", action: "Retry", submit: async () => { const answer = await post(`/api/v1/jobs/${seg(job.jobId)}/retry`, { resetAttempts: true }); toast(`It is ${answer.state} now.`); } });
  ctx.refresh();
}

/** @param {any} job */
async function again(job) {
  const made = await confirm({ title: "Enqueue a copy", text: `A new ${job.jobType} in ${job.queue} with the same arguments, tags and retries.`, action: "Enqueue", submit: () => post("/api/v1/jobs", { jobType: job.jobType, queue: job.queue, args: job.args, tags: job.tags ?? [], retry: job.retry, ...(job.correlationId ? { correlationId: job.correlationId } : {}) }) });
  if (made?.jobId) go("jobs", made.jobId);
}
