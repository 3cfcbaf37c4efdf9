// Dialogs: forms, and the confirmation of what cannot be undone, for which the name has to be typed. The browser keeps the
// focus inside and gives it back at the end.

import { ApiError } from "./api.js";
import { h } from "./dom.js";

/**
 * @typedef {object} Field
 * @property {string} name
 * @property {string} label
 * @property {"text" | "number" | "checkbox" | "textarea" | "select" | "password" | "datetime-local"} [type]
 * @property {any} [value]
 * @property {[string, string][]} [options]
 * @property {string} [hint]
 * @property {boolean} [required]
 */

/** Opens an empty dialog; it is gone once it is closed. */
/** @param {string} title @returns {any} */
function open(title) {
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, h("h2", { id: "dialog-title" }, title));
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (/** @type {MouseEvent} */ event) => {
    if (event.target === dialog) dialog.close();
  });
  document.body.append(dialog);
  return dialog;
}

/** @param {Field} field */
function input(field) {
  const id = `field-${field.name}`;
  const common = { id, name: field.name, required: field.required, "aria-describedby": field.hint ? `${id}-hint` : undefined };
  if (field.type === "textarea") return h("textarea", { ...common, rows: "6", spellcheck: "false" }, field.value ?? "");
  if (field.type === "select") return h("select", common, (field.options ?? []).map(([value, text]) => h("option", { value, selected: value === field.value }, text)));
  if (field.type === "checkbox") return h("input", { ...common, type: "checkbox", checked: Boolean(field.value) });
  return h("input", { ...common, type: field.type ?? "text", step: field.type === "number" ? "any" : field.type === "datetime-local" ? "1" : undefined, value: field.value ?? "", autocomplete: "off", spellcheck: "false" });
}

/**
 * Asks for some values and does something with them; stays open with the server's words when that fails.
 * @param {{title: string, text?: any, fields: Field[], action: string, danger?: boolean, submit: (values: Record<string, any>) => Promise<any>, extra?: any}} given
 * @returns {Promise<any>} what `submit` came to; `undefined` when the person left
 */
export function form(given) {
  const dialog = open(given.title);
  const problem = h("p.problem", { role: "alert" });
  /** @type {any} */
  let result;
  const done = new Promise((resolve) => dialog.addEventListener("close", () => resolve(result)));
  const button = h(given.danger ? "button.primary.danger" : "button.primary", { type: "submit" }, given.action);
  const submit = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    /** @type {Record<string, any>} */
    const values = {};
    for (const field of given.fields) {
      const element = dialog.querySelector(`[name="${field.name}"]`);
      values[field.name] = field.type === "checkbox" ? element.checked : field.type === "number" ? (element.value === "" ? null : Number(element.value)) : element.value;
    }
    button.disabled = true;
    try {
      result = (await given.submit(values)) ?? true;
      dialog.close();
    } catch (error) {
      problem.textContent = words(error);
    } finally {
      button.disabled = false;
    }
  };
  const rows = given.fields.map((field) => h(field.type === "checkbox" ? "div.field.check" : "div.field", null,
    h("label", { for: `field-${field.name}` }, field.label), input(field), field.hint ? h("p.hint", { id: `field-${field.name}-hint` }, field.hint) : null));
  dialog.append(h("form", { method: "dialog", onsubmit: submit },
    given.text ? h("div.text", null, given.text) : "", rows, given.extra ?? "", problem,
    h("div.actions", null, h("button", { type: "button", onclick: () => dialog.close() }, "Not now"), button)));
  dialog.showModal();
  dialog.querySelector("input, textarea, select, button[type=submit]")?.focus();
  return done;
}

/**
 * Confirms something that destroys: the name has to be typed.
 * @param {{title: string, text: any, name: string, action: string, submit: () => Promise<any>}} given
 */
export function confirmName(given) {
  return form({
    title: given.title,
    text: given.text,
    danger: true,
    action: given.action,
    fields: [{ name: "typed", label: `Type ${given.name} to confirm`, required: true }],
    submit: async ({ typed }) => {
      if (typed !== given.name) throw new Error(`that is not ${given.name}`);
      return given.submit();
    },
  });
}

/** Confirms something that can be undone. */
/** @param {{title: string, text: any, action: string, submit: () => Promise<any>}} given */
export const confirm = (given) => form({ ...given, fields: [] });

/** Shows something until it is closed. */
/** @param {string} title @param {any} body */
export function show(title, body) {
  const dialog = open(title);
  dialog.append(body, h("div.actions", null, h("button.primary", { type: "button", onclick: () => dialog.close() }, "Close")));
  dialog.showModal();
}

/** What to say of an error. */
/** @param {unknown} error */
export function words(error) {
  if (error instanceof ApiError && error.status === 403) return `Your token does not allow this: ${error.message}`;
  if (error instanceof ApiError && error.status === 0) return "The server does not answer. Nothing is known of what became of this.";
  return error instanceof Error ? error.message : String(error);
}

/** Says in a corner what came of something. */
/** @param {string} text @param {string} [tone] */
export function toast(text, tone = "ok") {
  const place = document.getElementById("toasts");
  const note = h("div.toast", { class: tone }, text);
  place?.append(note);
  setTimeout(() => note.remove(), tone === "bad" ? 9000 : 5000);
}

/** Does something at once and says what came of it. */
/** @param {() => Promise<any>} action @param {string} done */
export async function attempt(action, done) {
  try {
    await action();
    toast(done);
  } catch (error) {
    toast(words(error), "bad");
  }
}
