// One queue: how it flows, who reads it and how far behind, its partitions, its messages, its options.

import { api, learnClock, optional, post, query, remove, seg, serverNow } from "./api.js";
import { chart, points, RANGES, rangeMs, roundUpTime } from "./chart.js";
import { attempt, confirmName, form, toast } from "./dialog.js";
import { h } from "./dom.js";
import { age, ago, brief, count, duration, full, groupName, moment, rate, short } from "./format.js";
import { lease } from "./lease.js";
import { adjust, go, link } from "./router.js";
import { badge, choices, facts, panel, stateBadge, table, tile } from "./table.js";
import { payload } from "./viewer.js";

/** @typedef {import("./main.js").Context} Context */

const TABS = /** @type {[string, string][]} */ ([["overview", "Over time"], ["groups", "Groups"], ["partitions", "Partitions"], ["messages", "Messages"], ["options", "Options"]]);
const PLOTS_MS = 10_000;
/** Partitions of a page: a queue may have a million. */
const PARTITIONS = 200;
/** Of a queue that the last count did not know yet. */
const UNCOUNTED = { pending: NaN, processing: NaN, completed: NaN, deadLetter: NaN, total: NaN };
const QUEUE_MODE = "__QUEUE_MODE__";

/** The options, with what they mean. */
const OPTIONS = /** @type {[string, string, string][]} */ ([
  ["leaseTime", "Lease", "Seconds that a pop holds its messages."],
  ["retryLimit", "Retries", "Failed acks that a batch survives before its head becomes a dead letter."],
  ["retryDelay", "Retry delay", "Milliseconds before failed messages come again."],
  ["maxSize", "Bound", "Unfinished messages beyond which pushes are refused; 0 is no bound."],
  ["ttl", "Time to live", "Seconds after which a message is no longer delivered; 0 is never."],
  ["priority", "Priority", "Queues of a higher priority are served first by a pop over a namespace or task."],
  ["deadLetterQueue", "Keep dead letters", "Whether a message that is out of retries is kept."],
  ["dlqAfterMaxRetries", "Keep after retries", "The same switch under its other name: only when both are off is such a message dropped."],
  ["delayedProcessing", "Delay", "Seconds before a message can be delivered."],
  ["windowBuffer", "Window", "Seconds without a push before a partition is delivered."],
  ["retentionEnabled", "Retention", "Master switch of the two retentions."],
  ["retentionSeconds", "Retention of all", "Seconds after which a message is deleted, finished or not; 0 is never."],
  ["completedRetentionSeconds", "Retention of finished", "Seconds after which a message that every group finished is deleted; 0 is never."],
  ["maxWaitTimeSeconds", "Longest wait", "Seconds after which an unfinished message is deleted; 0 is never."],
  ["dedupWindowSeconds", "Dedup window", "Seconds for which a transaction id is remembered; 0 is not at all."],
  ["encryptionEnabled", "Encryption", "Whether payloads are encrypted at rest."],
]);

/** @param {Context} ctx */
export const title = (ctx) => ctx.path[0] ?? "Queue";

/** @param {Context} ctx */
const tabOf = (ctx) => ctx.params.get("tab") ?? "overview";

/** @param {Context} ctx */
export async function load(ctx) {
  const { local, signal } = ctx;
  const name = ctx.path[0] ?? "";
  const tab = tabOf(ctx);
  const fleet = await api("/api/v1/fleet", { signal });
  learnClock(fleet.now);
  const queue = fleet.queues.find((/** @type {any} */ row) => row.name === name);
  if (!local.detail || tab === "options" || tab === "partitions") {
    const page = tab === "partitions" ? { partition: ctx.params.get("partition"), after: ctx.params.get("after"), limit: PARTITIONS } : { limit: 1 };
    local.detail = await api(`/api/v1/queues/${seg(name)}${query(page)}`, { signal });
  }
  if (tab === "overview" && (!local.plots || local.plots.range !== ctx.range || Date.now() - local.plots.at > PLOTS_MS)) {
    local.plots = { at: Date.now(), range: ctx.range, ops: await api(`/api/v1/analytics/queue-ops${query({ queue: name, from: new Date(serverNow() - rangeMs(ctx.range)).toISOString() })}`, { signal }) };
  }
  if (tab === "groups") {
    const leases = await optional("/api/v1/leases?limit=1000", signal);
    local.leases = (leases?.leases ?? []).filter((/** @type {any} */ row) => row.queue === name);
  }
  if (tab === "messages") {
    const { params } = ctx;
    local.messages = await api(`/api/v1/messages${query({ queue: name, status: params.get("status"), partition: params.get("partition"), limit: local.shown ?? 50, from: new Date(serverNow() - rangeMs(ctx.params.get("range") ?? "7d")).toISOString() })}`, { signal });
  }
  return { name, tab, queue: queue ?? { ...local.detail, messages: UNCOUNTED, partitions: NaN }, groups: fleet.groups.filter((/** @type {any} */ row) => row.queue === name) };
}

/** @param {Context} ctx @param {any} data */
export function view(ctx, data) {
  const { name, queue, groups, tab } = data;
  const { messages } = queue;
  const oldest = Math.max(0, ...groups.filter((/** @type {any} */ row) => row.totalLag).map((/** @type {any} */ row) => row.maxTimeLag));
  const tools = [
    ctx.may("push") ? h("button", { type: "button", onclick: () => pushMessage(ctx, name) }, "Push") : null,
    ctx.may("admin") ? h("button.danger", { type: "button", onclick: () => purge(ctx, name, messages) }, "Purge") : null,
    ctx.may("admin") ? h("button.danger", { type: "button", onclick: () => destroy(name, messages) }, "Delete") : null,
    ctx.may("write") ? null : badge("read only"),
  ];
  const body = /** @type {Record<string, (ctx: Context, data: any) => any>} */ ({ overview: plots, groups: groupTable, partitions: partitionTable, messages: messageTable, options })[tab] ?? plots;
  return [
    h("div.head", null, h("h1", null, h("a.crumbs", { href: link("queues") }, "Queues / "), name), h("div.tools", null, tools)),
    h("div.tiles", null, tile("Depth", short(messages.pending)), tile("In work", short(messages.processing)), tile("Oldest", oldest ? duration(oldest * 1000) : "–", { tone: oldest > 600 ? "bad" : "" }),
      tile("Completed", short(messages.completed)), tile("Dead letters", short(messages.deadLetter), { tone: messages.deadLetter ? "warn" : "", href: link("dead-letters", { queue: name }) }),
      tile("Groups", count(groups.length)), tile("Partitions", count(queue.partitions))),
    choices("Part", TABS, tab, (value) => adjust({ tab: value === "overview" ? null : value, partition: null, after: null, status: null })),
    body(ctx, data),
  ];
}

/** @param {Context} ctx */
function plots(ctx) {
  const { ops } = ctx.local.plots ?? {};
  if (!ops) return null;
  const { times, rows, seconds } = points(ops.series, (row) => row.bucket, ops.bucketMinutes, ops.timeRange);
  const of = (/** @type {string} */ field) => rows.map((row) => row?.[field] ?? 0);
  const per = (/** @type {string} */ field) => of(field).map((value, index) => value / (seconds[index] ?? 60));
  return h("div.stack", null,
    h("div.tools", null, choices("Time range", RANGES, ctx.range, (value) => adjust({ range: value === "1h" ? null : value }))),
    h("div.columns", null,
      h("section.panel", null, chart({ title: "Messages", unit: "per second", times, format: rate, series: [{ name: "Pushed", tone: "one", values: per("pushMessages") }, { name: "Delivered", tone: "two", values: per("popMessages") }, { name: "Acked", tone: "three", values: per("ackSuccess") }, { name: "Failed", tone: "four", values: per("ackFailed") }] })),
      h("section.panel", null, chart({ title: "Wait before delivery", unit: "time", times, format: duration, round: roundUpTime, series: [{ name: "Longest", tone: "three", values: of("maxLagMs") }, { name: "Average", tone: "one", values: of("avgLagMs") }] })),
      h("section.panel", null, chart({ title: "Requests", unit: "per second", times, format: rate, series: [{ name: "Pushes", tone: "one", values: per("pushRequests") }, { name: "Acks", tone: "three", values: per("ackRequests") }, { name: "Empty pops", tone: "calm", values: per("popEmpty") }] })),
      h("section.panel", null, chart({ title: "Waiting pops", unit: "at the end of a minute", times, format: rate, series: [{ name: "Waiting", tone: "two", values: of("parkedCount") }] }))));
}

/** @param {Context} ctx @param {any} data */
function groupTable(ctx, { name, groups }) {
  const leases = ctx.local.leases ?? [];
  const actions = (/** @type {any} */ row) => h("div.tools", null,
    ctx.may("write") && row.name !== QUEUE_MODE ? h("button.small", { type: "button", onclick: () => seek(ctx, name, row.name) }, "Seek") : null,
    ctx.may("admin") && row.name !== QUEUE_MODE ? h("button.small.danger", { type: "button", onclick: () => forget(ctx, name, row.name) }, "Forget") : null);
  return h("div.stack", null,
    panel(["Groups ", h("small", null, "worst first")], table(ctx, {
      id: "groups", label: "Consumer groups", rows: groups, key: (row) => row.name, sort: "-Oldest", empty: "No consumer has come yet.",
      columns: [
        { name: "Group", by: (row) => row.name, cell: (row) => [h("b.cut", null, groupName(row.name)), row.conflation ? [" ", badge("newest only")] : null] },
        { name: "Behind", number: true, by: (row) => row.totalLag, cell: (row) => count(row.totalLag), help: "Messages it has not finished" },
        { name: "Oldest", number: true, by: (row) => (row.totalLag ? row.maxTimeLag : 0), cell: (row) => (row.totalLag ? h("span", { class: row.maxTimeLag > 600 ? "bad-text" : "" }, age(row.maxTimeLag)) : "–") },
        { name: "Partitions behind", number: true, by: (row) => row.partitionsWithLag, cell: (row) => count(row.partitionsWithLag) },
        { name: "Leases", number: true, by: (row) => row.leases, cell: (row) => (row.leases ? count(row.leases) : row.totalLag ? badge("nobody", "bad") : "0"), help: "Partitions that a consumer holds" },
        { name: "Began", minor: true, cell: (row) => ({ all: "at the oldest", new: "at new ones", timestamp: "at a moment" })[/** @type {"all" | "new" | "timestamp"} */ (row.subscriptionMode)] ?? row.subscriptionMode },
        { name: "First seen", number: true, minor: true, by: (row) => -Date.parse(row.subscribedAt), cell: (row) => ago(row.subscribedAt, serverNow()) },
        { name: "", cell: actions },
      ],
    }), { id: "queue-groups" }),
    panel(["Leases ", h("small", null, "partitions in work")], table(ctx, {
      id: "leases", label: "Leases", rows: leases, key: (row) => `${row.group} ${row.partitionId}`, empty: "No consumer holds a partition of this queue now.",
      columns: [
        { name: "Partition", by: (row) => row.partition, cell: (row) => h("span.cut", null, row.partition) },
        { name: "Group", by: (row) => row.group, cell: (row) => groupName(row.group) },
        { name: "Lease", cell: (row) => h("code", { title: row.leaseId }, brief(row.leaseId)) },
        { name: "Token", number: true, by: (row) => row.token, cell: (row) => h("code", null, row.token) },
        { name: "Held for", number: true, minor: true, by: (row) => -Date.parse(row.since), cell: (row) => ago(row.since, serverNow()) },
        { name: "Ends in", by: (row) => Date.parse(row.until), cell: (row) => lease(Date.parse(row.until), Date.parse(row.until) - Date.parse(row.since)) },
      ],
    }), { id: "queue-leases" }));
}

/** @param {Context} ctx @param {any} data */
function partitionTable(ctx, { queue }) {
  const { detail } = ctx.local;
  const { params } = ctx;
  return panel(["Partitions ", h("small", null, `${count(queue.partitions)}, in the order they were made`)], [
    h("div.filters", null, h("label", null, "Name, exactly", h("input", { type: "search", value: params.get("partition") ?? "", onchange: (/** @type {any} */ event) => adjust({ partition: event.target.value, after: null }) }))),
    table(ctx, {
      id: "partitions", label: "Partitions", rows: detail.partitions, key: (row) => row.id, max: PARTITIONS, empty: params.get("partition") ? "No partition has this name." : "Nothing was ever pushed.",
      columns: [
        { name: "Partition", by: (row) => row.name, cell: (row) => h("a.cut", { href: link("queues", detail.name, { tab: "messages", partition: row.name }) }, row.name) },
        { name: "Depth", number: true, by: (row) => row.pending, cell: (row) => count(row.pending) },
        { name: "In work", number: true, by: (row) => row.processing, cell: (row) => count(row.processing) },
        { name: "Kept", number: true, minor: true, by: (row) => row.total, cell: (row) => count(row.total) },
        { name: "Oldest", number: true, minor: true, by: (row) => -Date.parse(row.oldestMessage), cell: (row) => ago(row.oldestMessage, serverNow()) },
        { name: "Newest", number: true, minor: true, by: (row) => -Date.parse(row.newestMessage), cell: (row) => ago(row.newestMessage, serverNow()) },
      ],
    }),
    params.has("after") || detail.nextAfter ? h("div.tools.inside", null, h("button", { type: "button", disabled: !params.has("after"), onclick: () => adjust({ after: null }) }, "First page"), h("button", { type: "button", disabled: !detail.nextAfter, onclick: () => adjust({ after: detail.nextAfter }) }, "Next page")) : null], { id: "queue-partitions" });
}

/** @param {Context} ctx @param {any} data */
function messageTable(ctx, { name }) {
  const { local, params } = ctx;
  const chosen = local.chosen;
  const rows = local.messages?.messages ?? [];
  const more = () => {
    local.shown = (local.shown ?? 50) + 100;
    ctx.refresh();
  };
  const states = /** @type {[string, string][]} */ ([["", "All"], ["pending", "Pending"], ["processing", "In work"], ["completed", "Completed"], ["dead_letter", "Dead"]]);
  const list = panel(["Messages ", h("small", null, "newest first, looked at without taking them")], [
    h("div.filters", null, choices("State", states, params.get("status") ?? "", (value) => adjust({ status: value })),
      h("label", null, "Partition", h("input", { type: "text", value: params.get("partition") ?? "", onchange: (/** @type {any} */ event) => adjust({ partition: event.target.value }) })),
      h("label", null, "Within", h("select", { onchange: (/** @type {any} */ event) => adjust({ range: event.target.value }) }, RANGES.map(([value, text]) => h("option", { value, selected: value === (params.get("range") ?? "7d") }, text))))),
    table(ctx, {
      id: "messages", label: "Messages", rows, key: (row) => `${row.partitionId}:${row.offset}`, selected: (row) => chosen && row.offset === chosen.offset && row.partitionId === chosen.partitionId,
      empty: "No message fits.",
      columns: [
        { name: "Transaction", cell: (row) => h("button.quiet.small.mono", { type: "button", title: row.transactionId, onclick: () => { local.chosen = row; ctx.redraw(); } }, brief(row.transactionId)) },
        { name: "State", cell: (row) => stateBadge(row.status) },
        { name: "Partition", cell: (row) => h("span.cut", null, row.partition) },
        { name: "Offset", number: true, cell: (row) => row.offset },
        { name: "Payload", minor: true, cell: (row) => h("code.cut", null, JSON.stringify(row.payload)) },
        { name: "Stored", number: true, cell: (row) => h("span", { title: full(row.createdAt) }, moment(row.createdAt, serverNow())) },
      ],
    }),
    rows.length >= (local.shown ?? 50) ? h("button.more", { type: "button", onclick: more }, "Show older ones") : null], { id: "queue-messages" });
  return h("div", { class: chosen ? "columns wide" : "stack" }, list, chosen ? message(ctx, name, chosen) : null);
}

/** @param {Context} ctx @param {string} name @param {any} row */
function message(ctx, name, row) {
  const at = `/api/v1/messages/${seg(row.partitionId)}/${seg(row.transactionId)}`;
  const close = () => {
    ctx.local.chosen = null;
    ctx.redraw();
  };
  const drop = () => confirmName({ title: "Delete this message", text: "It is gone for all groups.", name, action: "Delete", submit: async () => { await remove(at); close(); toast("The message is gone."); ctx.refresh(); } });
  return panel("Message", [
    facts([["Transaction", h("code", null, row.transactionId)], ["State", stateBadge(row.status)], ["Partition", row.partition], ["Offset", row.offset], ["Stored", full(row.createdAt)], ["Producer", row.producerSub],
      ["Consumed by", `${row.busStatus.consumedBy} of ${row.busStatus.totalGroups} groups`], ...row.leases.map((/** @type {any} */ one) => /** @type {[string, any]} */ ([`Held for ${groupName(one.group)}`, [lease(Date.parse(one.until), Date.parse(one.until) - Date.parse(one.since)), h("small", null, ` token ${one.token}`)]]))]),
    h("div.inside", null, payload(row.payload))], { id: "message", tools: [
    ctx.may("push") ? h("button.small", { type: "button", onclick: () => pushMessage(ctx, name, row) }, "Push a copy") : null,
    ctx.may("write") ? h("button.small.danger", { type: "button", onclick: drop }, "Delete") : null, h("button.small.quiet", { type: "button", onclick: close }, "Close")] });
}

/** @param {Context} ctx @param {any} data */
function options(ctx, { name }) {
  const { detail } = ctx.local;
  const tools = ctx.may("write") ? h("button", { type: "button", onclick: () => edit(ctx, name) }, "Edit") : null;
  const rows = OPTIONS.map(([key, label, help]) => h("tr", { key }, h("th", { scope: "row" }, label), h("td", null, h("code", null, String(detail.options[key]))), h("td.wrap.muted", null, help)));
  return panel("Options", [facts([["Namespace", detail.namespace || "–"], ["Task", detail.task || "–"], ["Created", full(detail.createdAt)]]),
    h("div.table", { tabindex: "0", role: "region", "aria-label": "Options" }, h("table", null, h("tbody", null, rows)))], { id: "queue-options", tools });
}

/** Sends only what was changed. */
/** @param {Context} ctx @param {string} name */
async function edit(ctx, name) {
  const old = ctx.local.detail.options;
  await form({
    title: `Options of ${name}`, action: "Save", text: "Only what you change is sent.",
    fields: OPTIONS.map(([key, label, hint]) => ({ name: key, label, hint, type: typeof old[key] === "boolean" ? /** @type {const} */ ("checkbox") : /** @type {const} */ ("number"), value: old[key] })),
    submit: async (values) => {
      const changes = Object.fromEntries(Object.entries(values).filter(([key, value]) => value !== old[key]));
      if (!Object.keys(changes).length) throw new Error("nothing was changed");
      await post("/api/v1/configure", { queue: name, options: changes });
      toast(`Saved: ${Object.keys(changes).join(", ")}`);
    },
  });
  ctx.local.detail = null;
  ctx.refresh();
}

/** @param {Context} ctx @param {string} queue @param {any} [from] */
async function pushMessage(ctx, queue, from) {
  await form({
    title: from ? "Push a copy" : `Push to ${queue}`, action: "Push",
    fields: [
      { name: "partition", label: "Partition", value: from?.partition ?? "Default", required: true },
      { name: "transactionId", label: "Transaction id", hint: "A push with an id that is known is a duplicate. Left empty, the server makes one." },
      { name: "payload", label: "Payload, JSON", type: "textarea", value: JSON.stringify(from?.payload ?? { hello: "world" }, null, 2), required: true },
    ],
    submit: async ({ partition, transactionId, payload: text }) => {
      const [answer] = await post("/api/v1/push", { items: [{ queue, partition, payload: JSON.parse(text), ...(transactionId ? { transactionId } : {}) }] });
      toast(`The message is ${answer?.status ?? "stored"}.`);
    },
  });
  ctx.refresh();
}

/** @param {Context} ctx @param {string} queue @param {string} group */
async function seek(ctx, queue, group) {
  await form({
    title: `Move ${group}`, action: "Move", danger: true, text: "The group goes on from there in every partition: messages before it count as finished, those after it come again.",
    fields: [
      { name: "to", label: "To", type: "select", value: "time", options: [["time", "a moment"], ["begin", "the oldest message"], ["end", "the end: skip everything"]] },
      { name: "at", label: "Moment, in this browser's time zone", type: "datetime-local" },
      { name: "typed", label: `Type ${group} to confirm`, required: true },
    ],
    submit: async ({ to, at, typed }) => {
      if (typed !== group) throw new Error(`that is not ${group}`);
      if (to === "time" && !at) throw new Error("name the moment");
      const body = to === "end" ? { toEnd: true } : { timestamp: to === "begin" ? "1970-01-01T00:00:00Z" : new Date(at).toISOString() };
      const answer = await post(`/api/v1/consumer-groups/${seg(group)}/queues/${seg(queue)}/seek`, body);
      toast(`Moved in ${count(answer.partitionsUpdated)} partitions.`);
    },
  });
  ctx.refresh();
}

/** @param {Context} ctx @param {string} queue @param {string} group */
async function forget(ctx, queue, group) {
  await confirmName({ title: `Forget ${group} in ${queue}`, text: "If it comes back it begins as a new group.", name: group, action: "Forget", submit: () => remove(`/api/v1/consumer-groups/${seg(group)}/queues/${seg(queue)}`) });
  ctx.refresh();
}

/** @param {Context} ctx @param {string} name @param {any} messages */
async function purge(ctx, name, messages) {
  await confirmName({
    title: `Purge ${name}`, name, action: "Purge", text: `All messages are deleted, ${count(messages.pending + messages.processing)} unfinished ones among them. Options, groups and dead letters stay. There is no way back.`,
    submit: async () => {
      /** @type {any} */
      let answer = null;
      do answer = await remove(`/api/v1/queues/${seg(name)}/clear${query({ cursor: answer?.nextCursor })}`);
      while (answer.nextCursor);
      toast(`${name} is empty.`);
    },
  });
  ctx.refresh();
}

/** @param {string} name @param {any} messages */
async function destroy(name, messages) {
  const done = await confirmName({ title: `Delete ${name}`, name, action: "Delete", text: `The queue goes with everything in it: ${count(messages.total)} messages, its groups and its dead letters. There is no way back.`, submit: () => remove(`/api/v1/resources/queues/${seg(name)}`) });
  if (done) {
    void attempt(async () => go("queues"), `${name} is deleted.`);
  }
}
