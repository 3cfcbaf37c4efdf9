// Payloads: JSON with its parts told apart, text as text. Never markup of the payload's own.

import { h } from "./dom.js";

const SHOWN_BYTES = 200_000;
const TOKENS = /("(?:\\.|[^"\\])*")(\s*:)?|\b(true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** @param {any} value @param {string} [label] */
export function payload(value, label = "Payload") {
  const whole = typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "null";
  const text = whole.slice(0, SHOWN_BYTES);
  const copy = async (/** @type {any} */ event) => {
    await navigator.clipboard?.writeText(whole);
    event.target.textContent = "Copied";
  };
  const parts = typeof value === "string" ? [text] : coloured(text);
  return h("div.payload", null,
    h("div.tools", null, h("small", null, `${new TextEncoder().encode(whole).length.toLocaleString("en-US")} bytes`), navigator.clipboard ? h("button.small.quiet", { type: "button", onclick: copy }, "Copy") : null),
    h("pre", { tabindex: "0", role: "region", "aria-label": label }, parts, whole.length > SHOWN_BYTES ? "\n… the rest is not shown" : ""));
}

/** @param {string} text */
function coloured(text) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(TOKENS)) {
    parts.push(text.slice(end, match.index));
    const [token, string, colon, word] = match;
    const kind = string ? (colon ? "name" : "text") : word ? "word" : "digits";
    parts.push(h(`span.${kind}`, null, string ?? token));
    if (colon) parts.push(colon);
    end = match.index + token.length;
  }
  parts.push(text.slice(end));
  return parts;
}
