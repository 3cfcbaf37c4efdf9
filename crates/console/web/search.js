// The search in the head of the page: queues, jobs, schedules, services, elections by name, a job by its id.

import { hasToken, optional } from "./api.js";
import { byId, h, render } from "./dom.js";
import { link } from "./router.js";

const FRESH_MS = 10_000;
const SHOWN_MAX = 12;
const UUID = /^[0-9a-f]{8}-[0-9a-f-]{27}$/i;

/** @type {{at: number, token: boolean, things: [string, string, string][]}} */
let known = { at: 0, token: false, things: [] };

/** Everything with a name: kind, name, address. */
async function things() {
  if (Date.now() - known.at < FRESH_MS && known.token === hasToken()) return known.things;
  const answers = await Promise.all(["resources/queues", "job-queues", "schedules", "shards", "elections"].map((path) => optional(`/api/v1/${path}`).catch(() => null)));
  const [queues, jobQueues, schedules, shards, elections] = answers;
  known = {
    at: Date.now(),
    token: hasToken(),
    things: [
      ...(queues?.queues ?? []).map((/** @type {any} */ row) => ["queue", row.name, link("queues", row.name)]),
      ...(jobQueues?.queues ?? []).map((/** @type {any} */ row) => ["job queue", row.name, link("jobs", { queue: row.name })]),
      ...(schedules?.schedules ?? []).map((/** @type {any} */ row) => ["schedule", row.id, link("schedules", row.id)]),
      ...(shards?.services ?? []).map((/** @type {any} */ row) => ["shards", row.service, link("ownership", { kind: "shard", service: row.service })]),
      ...(elections?.elections ?? []).map((/** @type {any} */ row) => ["election", row.group, link("ownership", { kind: "election" })]),
    ],
  };
  return known.things;
}

/** @param {string} text @returns {Promise<[string, string, string][]>} */
async function find(text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return [];
  if (UUID.test(wanted)) return [["job", wanted, link("jobs", wanted)]];
  const found = (await things()).filter(([, name]) => name.toLowerCase().includes(wanted));
  found.sort((a, b) => Number(b[1].toLowerCase().startsWith(wanted)) - Number(a[1].toLowerCase().startsWith(wanted)));
  return [...found.slice(0, SHOWN_MAX), ["jobs with", text.trim(), link("jobs", { q: text.trim() })]];
}

export function start() {
  const [input, list] = [byId("search"), byId("found")];
  let chosen = 0;
  /** @type {[string, string, string][]} */
  let found = [];
  const draw = () => {
    list.hidden = !found.length;
    input.setAttribute("aria-expanded", String(found.length > 0));
    input.setAttribute("aria-activedescendant", found.length ? `found-${chosen}` : "");
    render(list, found.map(([kind, name, href], index) => h("a", { id: `found-${index}`, role: "option", tabindex: "-1", "aria-selected": String(index === chosen), href, onclick: close }, h("small", null, kind), name)));
  };
  const close = () => {
    found = [];
    input.value = "";
    input.blur();
    draw();
  };
  input.addEventListener("input", async () => {
    const text = input.value;
    const results = await find(text);
    if (input.value !== text) return;
    [found, chosen] = [results, 0];
    draw();
  });
  input.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && found.length) {
      event.preventDefault();
      chosen = (chosen + step + found.length) % found.length;
      draw();
    } else if (event.key === "Enter" && found[chosen]) {
      event.preventDefault();
      location.hash = found[chosen]?.[2] ?? "";
      close();
    } else if (event.key === "Escape") close();
  });
  input.addEventListener("blur", () => setTimeout(() => {
    found = [];
    draw();
  }, 200));
}
