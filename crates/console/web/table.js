// Tables: sorted by a click on a head, scrolled inside their own box on small screens, and honest when they are empty.

import { h } from "./dom.js";

/**
 * @typedef {object} Column
 * @property {string} name what stands in the head
 * @property {(row: any) => any} cell what stands in a row: text or a node
 * @property {(row: any) => number | string} [by] what rows are sorted by; a column without it is not sorted
 * @property {boolean} [number] whether it is aligned as a number
 * @property {boolean} [minor] whether it is left out on small screens
 * @property {string} [help] a title of the head
 */

/**
 * @param {import("./main.js").Context} ctx
 * @param {{
 *   id: string, label: string, columns: (Column | null | false)[], rows: any[], key: (row: any) => string, sort?: string,
 *   empty?: any, max?: number, selected?: (row: any) => boolean, open?: (row: any) => string,
 * }} given `sort` is the name of a column, with `-` before it for the largest first
 */
export function table(ctx, given) {
  const columns = /** @type {Column[]} */ (given.columns.filter(Boolean));
  if (!given.rows.length) return h("div.empty", null, given.empty ?? "There is nothing here.");
  const sort = ctx.local[`sort:${given.id}`] ?? given.sort ?? "";
  const [name, sign] = sort.startsWith("-") ? [sort.slice(1), -1] : [sort, 1];
  const by = columns.find((column) => column.name === name)?.by;
  const rows = by ? given.rows.map((row) => /** @type {[any, any]} */ ([by(row), row])).sort(([a], [b]) => sign * compare(a, b)).map(([, row]) => row) : given.rows;
  const max = ctx.local[`max:${given.id}`] ?? given.max ?? 200;
  const head = columns.map((column) => {
    const sorted = column.name === name && column.by ? (sign < 0 ? "descending" : "ascending") : undefined;
    const classes = [column.number ? "number" : "", column.minor ? "minor" : ""].join(" ");
    const flip = () => {
      const first = column.number ? "-" : "";
      ctx.local[`sort:${given.id}`] = sort === first + column.name ? (first ? column.name : `-${column.name}`) : first + column.name;
      ctx.redraw();
    };
    const label = column.by ? h("button.sort", { type: "button", onclick: flip }, column.name) : column.name || h("span.hidden", null, "Actions");
    return h("th", { class: classes, scope: "col", "aria-sort": sorted, title: column.help }, label);
  });
  const body = rows.slice(0, max).map((row) => {
    const cells = columns.map((column) => h("td", { class: [column.number ? "number" : "", column.minor ? "minor" : ""].join(" ") }, column.cell(row)));
    return h("tr", { key: given.key(row), class: given.selected?.(row) ? "selected" : "" }, cells);
  });
  const more = () => {
    ctx.local[`max:${given.id}`] = max + 500;
    ctx.redraw();
  };
  return h("div.table", { tabindex: "0", role: "region", "aria-label": given.label },
    h("table", null, h("thead", null, h("tr", null, head)), h("tbody", null, body)),
    rows.length > max ? h("button.more", { type: "button", onclick: more }, `Show more: ${max} of ${rows.length} are shown`) : null);
}

/** @param {any} a @param {any} b */
function compare(a, b) {
  if (typeof a === "string" || typeof b === "string") return String(a).localeCompare(String(b), "en", { numeric: true });
  return (Number.isNaN(a) ? -Infinity : a) - (Number.isNaN(b) ? -Infinity : b);
}

/** A name with its value, for the facts of one thing. */
/** @param {[string, any][]} pairs */
export function facts(pairs) {
  return h("dl.facts", null, pairs.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => h("div", { key: name }, h("dt", null, name), h("dd", null, value))));
}

/** A number that matters, with its name. */
/** @param {string} name @param {any} value @param {{tone?: string | undefined, note?: any, href?: string, more?: any}} [given] */
export function tile(name, value, given = {}) {
  const inside = [h("span.name", null, name), h("span.value", { class: `${given.tone ?? ""}${typeof value === "string" && value.length > 8 ? " long" : ""}`, title: typeof value === "string" && value.length > 8 ? value : undefined }, value), given.note ? h("span.note", null, given.note) : null, given.more ?? null];
  return given.href ? h("a.tile", { key: name, href: given.href }, inside) : h("div.tile", { key: name }, inside);
}

/** A word about a state, in its colour. */
/** @param {string} text @param {string} [tone] ok, warn, bad, busy or none */
export const badge = (text, tone = "") => h("span.badge", { class: tone }, text);

const TONES = /** @type {Record<string, string>} */ ({
  completed: "ok", active: "ok", healthy: "ok", Stable: "ok", running: "busy", processing: "busy", dispatched: "busy", cancelling: "warn",
  failed: "bad", timed_out: "bad", dead_letter: "bad", dead: "bad", offline: "bad", open: "bad", inactive: "bad", Dead: "", unhealthy: "bad",
  draining: "warn", stopping: "warn", Lagging: "warn", half_open: "warn", fenced: "warn", paused: "warn", cancelled: "",
});

/** The badge of a state as the API names it. */
/** @param {string} state */
export const stateBadge = (state) => badge(String(state).replace(/_/g, " "), TONES[state] ?? "");

/** A panel with a head. */
/** @param {any} title @param {any} body @param {{tools?: any, id?: string, class?: string}} [given] */
export function panel(title, body, given = {}) {
  return h("section.panel", { class: given.class ?? "", key: given.id ?? (typeof title === "string" ? title : undefined), id: given.id },
    h("header", null, h("h2", null, title), given.tools ? h("div.tools", null, given.tools) : null), body);
}

/** Choices of which one holds, as buttons in a row. */
/** @param {string} label @param {[string, string][]} options value and text @param {string} chosen @param {(value: string) => void} choose */
export function choices(label, options, chosen, choose) {
  return h("div.choices", { role: "group", "aria-label": label }, options.map(([value, text]) =>
    h("button", { type: "button", key: value, "aria-pressed": String(value === chosen), onclick: () => choose(value) }, text)));
}
