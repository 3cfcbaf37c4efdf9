// Keys: everything can be reached without a mouse. A key counts only while nothing is being typed and no dialog is open.

import { show } from "./dialog.js";
import { byId, h } from "./dom.js";
import { isPaused, pause } from "./live.js";
import { go } from "./router.js";
import { next } from "./theme.js";

/** The screens by the key that follows `g`. */
export const PLACES = /** @type {Record<string, [string, string]>} */ ({
  o: ["overview", "overview"], q: ["queues", "queues"], d: ["dead-letters", "dead letters"], j: ["jobs", "jobs"],
  s: ["schedules", "schedules"], w: ["workers", "workers and servers"], l: ["ownership", "ownership: who holds which lease"],
  r: ["records", "records, locks and timers"], e: ["settings", "settings and health"],
});

const OTHERS = /** @type {[string, string][]} */ ([["/", "search"], ["p", "pause, or go on"], ["t", "switch colours"], ["?", "this help"], ["Esc", "close, or leave the search"]]);

let awaiting = false;

export function help() {
  const rows = [...Object.entries(PLACES).map(([key, [, name]]) => /** @type {[string, string]} */ ([`g ${key}`, name])), ...OTHERS];
  show("Keys", h("dl.keys", null, rows.map(([keys, what]) => h("div", null, h("dt", null, keys.split(" ").map((key) => [h("kbd", null, key), " "])), h("dd", null, what)))));
}

export function start() {
  addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (target.closest("input, textarea, select, dialog")) {
      if (event.key === "Escape" && target.id === "search") target.blur();
      return;
    }
    if (awaiting) {
      awaiting = false;
      const place = PLACES[event.key];
      if (place) {
        event.preventDefault();
        go(place[0]);
      }
      return;
    }
    const act = /** @type {Record<string, () => void>} */ ({
      "/": () => byId("search").focus(),
      g: () => {
        awaiting = true;
        setTimeout(() => (awaiting = false), 1500);
      },
      p: () => pause(!isPaused()),
      t: next,
      "?": help,
    })[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  });
}
