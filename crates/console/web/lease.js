// A lease that runs out: a bar and a countdown, which the frame moves between two looks.

import { h } from "./dom.js";
import { countdown } from "./format.js";
import { serverNow } from "./api.js";

/** @param {number} until by the server's clock, in milliseconds @param {number} total how long it was when it was given */
export function lease(until, total) {
  if (!Number.isFinite(until)) return h("span.muted", null, "–");
  const left = until - serverNow();
  const share = Math.min(1, Math.max(0, left / Math.max(total, 1)));
  const tone = share < 0.15 ? "bad" : share < 0.35 ? "warn" : "ok";
  return h("span.lease", { "data-until": Math.round(until), "data-total": Math.round(total) }, h("span.bar", { "aria-hidden": "true" }, h("i", { class: tone, style: { width: `${(share * 100).toFixed(1)}%` } })), h("span.left", null, countdown(left)));
}

const HUES = 12;

/** The colour of an owner, the same everywhere. */
/** @param {string} name */
export function hue(name) {
  let sum = 7;
  for (const letter of name) sum = (sum * 31 + (letter.codePointAt(0) ?? 0)) >>> 0;
  return `o${sum % HUES}`;
}

/** An owner with its colour. */
/** @param {string | null | undefined} name @param {string} [title] */
export const owner = (name, title) => (name ? h("span.owner", { title: title ?? name }, h("i", { class: hue(name), "aria-hidden": "true" }), name) : h("span.muted", null, "nobody"));
