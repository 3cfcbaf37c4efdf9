// Charts over time: lines with axes, units and the values under the pointer. The lines are SVG that stretches with the
// page; everything with letters is HTML, so it never stretches.

import { h, svg } from "./dom.js";
import { axisTime, clock } from "./format.js";

/** @typedef {{name: string, values: (number | null)[], tone: string}} Series */

/** A round number at or above `value`, for the end of an axis. */
/** @param {number} value */
export function roundUp(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 2.5, 4, 5, 10].find((step) => step * power >= value * 0.9999) ?? 10) * power;
}

const SECOND = 1000;
const SPANS = [1, 2, 5, 10, 20, 50, 100, 200, 500, ...[1, 2, 4, 10, 20, 30, 60, 120, 240, 600, 1200, 1800, 3600, 7200, 14_400, 28_800, 43_200, 86_400].map((seconds) => seconds * SECOND)];

/** The same for milliseconds: halves are whole seconds, minutes or hours. */
/** @param {number} ms */
export const roundUpTime = (ms) => SPANS.find((span) => span >= ms) ?? Math.ceil(ms / (172_800 * SECOND)) * 172_800 * SECOND;

/** The same for bytes. */
/** @param {number} value */
export const roundUpBytes = (value) => 2 ** Math.ceil(Math.log2(Math.max(value, 1024)));

/**
 * @param {{title: string, unit: string, times: number[], series: Series[], format: (value: number) => string, round?: (value: number) => number}} given
 */
export function chart(given) {
  const { times, series, format } = given;
  const [first, last] = [times[0] ?? 0, times.at(-1) ?? 0];
  const span = Math.max(last - first, 1);
  const top = (given.round ?? roundUp)(Math.max(0, ...series.flatMap((one) => one.values.map((value) => value ?? 0))));
  const x = (/** @type {number} */ at) => ((at - first) / span) * 1000;
  const y = (/** @type {number} */ value) => 1000 - (value / top) * 1000;
  const legend = h("div.legend", null, series.map((one) => {
    const now = one.values.findLast((value) => value !== null);
    return h("span", { key: one.name, class: one.tone }, h("i", { "aria-hidden": "true" }), one.name, " ", h("b", null, now === undefined || now === null ? "–" : format(now)));
  }));
  if (times.length < 2) {
    return h("figure.chart", { key: given.title }, h("figcaption", null, h("h2", null, given.title, h("small", null, given.unit)), legend), h("div.empty", null, "A plot begins after two minutes with something to count."));
  }
  const lines = series.map((one) => svg("path", { key: one.name, class: `line ${one.tone}`, d: path(one.values, times, x, y) }));
  const fill = series.length ? svg("path", { class: `area ${series[0]?.tone}`, d: area(series[0]?.values ?? [], times, x, y) }) : null;
  const steps = [0, 0.25, 0.5, 0.75, 1];
  const grid = steps.map((step) => svg("path", { class: step ? "grid" : "grid base", d: `M0 ${1000 - step * 1000}H1000` }));
  const ys = steps.filter((step) => step !== 0.25 && step !== 0.75).map((step) => h("span", { style: { bottom: `${step * 100}%` } }, format(top * step)));
  const xs = [0, 1 / 3, 2 / 3, 1].map((step) => h("span", { style: { left: `${step * 100}%` } }, axisTime(first + span * step, span)));
  const summary = series.map((one) => `${one.name} ${format(one.values.at(-1) ?? 0)}`).join(", ");
  const hover = (/** @type {PointerEvent} */ event) => point(event, given, top);
  const leave = (/** @type {PointerEvent} */ event) => /** @type {Element} */ (event.currentTarget).querySelector(".cursor")?.replaceChildren();
  return h("figure.chart", { key: given.title },
    h("figcaption", null, h("h2", null, given.title, h("small", null, given.unit)), legend),
    h("div.plot", { role: "img", "aria-label": `${given.title} in ${given.unit}, now ${summary}`, onpointermove: hover, onpointerleave: leave },
      svg("svg", { viewBox: "0 0 1000 1000", preserveAspectRatio: "none", "aria-hidden": "true" }, grid, fill, lines),
      h("div.ys", { "aria-hidden": "true" }, ys), h("div.xs", { "aria-hidden": "true" }, xs), h("div.cursor", { "data-own": true, "aria-hidden": "true" })));
}

/** Shows the values of the point that is nearest to the pointer. */
/** @param {PointerEvent} event @param {{times: number[], series: Series[], format: (value: number) => string}} given @param {number} top */
function point(event, given, top) {
  const plot = /** @type {HTMLElement} */ (event.currentTarget);
  const box = plot.getBoundingClientRect();
  const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  const { times, series, format } = given;
  const [first, last] = [times[0] ?? 0, times.at(-1) ?? 1];
  const at = first + share * (last - first);
  let nearest = 0;
  times.forEach((time, index) => {
    if (Math.abs(time - at) < Math.abs((times[nearest] ?? 0) - at)) nearest = index;
  });
  const left = (((times[nearest] ?? 0) - first) / Math.max(last - first, 1)) * 100;
  const rows = series.map((one) => h("li", { class: one.tone }, h("i"), one.name, h("b", null, one.values[nearest] === null ? "–" : format(one.values[nearest] ?? 0))));
  const dots = series.map((one) => (one.values[nearest] === null ? null : h("s", { class: one.tone, style: { left: `${left}%`, bottom: `${((one.values[nearest] ?? 0) / top) * 100}%` } })));
  const note = h("div.note", { class: left > 60 ? "left" : "", style: { left: `${left}%` } }, h("time", null, clock(times[nearest])), h("ul", null, rows));
  plot.querySelector(".cursor")?.replaceChildren(h("hr", { style: { left: `${left}%` } }), ...dots.filter(Boolean), note);
}

/** @param {(number | null)[]} values @param {number[]} times @param {(at: number) => number} x @param {(value: number) => number} y */
function path(values, times, x, y) {
  let [text, gap] = ["", true];
  values.forEach((value, index) => {
    if (value === null) gap = true;
    else {
      text += `${gap ? "M" : "L"}${x(times[index] ?? 0).toFixed(1)} ${y(value).toFixed(1)}`;
      gap = false;
    }
  });
  return text;
}

/** @param {(number | null)[]} values @param {number[]} times @param {(at: number) => number} x @param {(value: number) => number} y */
function area(values, times, x, y) {
  const whole = values.map((value) => value ?? 0);
  if (whole.length < 2) return "";
  return `${path(whole, times, x, y)}L${x(times.at(-1) ?? 0).toFixed(1)} 1000L0 1000Z`;
}

/** A line without axes, for a row of a table. */
/** @param {number[]} values @param {string} tone @param {string} label */
export function sparkline(values, tone, label) {
  if (values.length < 2) return h("span.spark", { "aria-hidden": "true" });
  const top = Math.max(...values, 1e-9);
  const step = 100 / (values.length - 1);
  const d = values.map((value, index) => `${index ? "L" : "M"}${(index * step).toFixed(1)} ${(23 - (value / top) * 21).toFixed(1)}`).join("");
  return h("span.spark", { role: "img", "aria-label": label }, svg("svg", { viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("path", { class: `area ${tone}`, d: `${d}L100 24L0 24Z` }), svg("path", { class: `line ${tone}`, d })));
}

/** How much of a whole is used, as a bar. */
/** @param {number} share from 0 to 1 @param {string} [tone] */
export function bar(share, tone = "") {
  return h("span.bar", { "aria-hidden": "true" }, h("i", { class: tone, style: { width: `${(Math.min(1, Math.max(0, share)) * 100).toFixed(1)}%` } }));
}

/** The spans of time that a page can be asked for. */
export const RANGES = /** @type {[string, string][]} */ ([["1h", "1 h"], ["6h", "6 h"], ["24h", "24 h"], ["7d", "7 d"]]);

/** @param {string} range */
export const rangeMs = (range) => ({ "6h": 6, "24h": 24, "7d": 168 }[range] ?? 1) * 3_600_000;

/**
 * The points of a span, with zero where the server has nothing to tell.
 * @param {any[]} rows of the API @param {(row: any) => any} at the beginning of a row's point @param {number} minutes to a point
 * @param {{from: string, to: string}} span
 * @returns {{times: number[], rows: (any | null)[], seconds: number[]}} `seconds` is how much of a point is over
 */
export function points(rows, at, minutes, span) {
  const width = minutes * 60_000;
  const known = new Map(rows.map((row) => [Math.floor(Date.parse(at(row)) / width), row]));
  const [from, to] = [Math.floor(Date.parse(span.from) / width), Math.floor(Date.parse(span.to) / width)];
  const times = Array.from({ length: Math.max(0, to - from + 1) }, (_, index) => (from + index) * width);
  const end = Date.parse(span.to);
  return { times, rows: times.map((time) => known.get(time / width) ?? null), seconds: times.map((time) => Math.max(1, Math.min(width, end - time) / 1000)) };
}
