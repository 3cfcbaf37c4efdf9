// The frame around the screens: which one is shown, what it shows while it loads, while the server is away and when the
// token does not allow it. Start at `open`.
//
// A screen is a module with `title`, `load` (asks the API) and `view` (describes the page). Its `view` runs after each
// `load` and after each `ctx.redraw()`; it has no state but `ctx.local`.

import { api, ApiError, hasToken, optional, serverNow, setToken } from "./api.js";
import { form, words } from "./dialog.js";
import { byId, h, render } from "./dom.js";
import { countdown, duration } from "./format.js";
import { help, start as startKeys } from "./keyboard.js";
import { isPaused, live, onPause, pause } from "./live.js";
import { here, link } from "./router.js";
import { start as startSearch } from "./search.js";
import * as theme from "./theme.js";

/**
 * @typedef {object} Context
 * @property {string[]} path what the address names, without the screen
 * @property {URLSearchParams} params the filters in the address
 * @property {Record<string, any>} local what the screen remembers while it is shown
 * @property {AbortSignal} signal ends when the screen is left
 * @property {() => void} redraw describes the page again
 * @property {() => void} refresh asks the server again, now
 * @property {(level: "push" | "write" | "admin") => boolean} may whether the caller's token allows that
 * @property {string} range the span of time that plots show
 *
 * @typedef {object} Screen
 * @property {(ctx: Context) => string} title
 * @property {(ctx: Context) => Promise<any>} load
 * @property {(ctx: Context, data: any) => any} view
 * @property {number} [every] milliseconds between two looks
 */

/** @type {Record<string, () => Promise<any>>} */
const SCREENS = {
  overview: () => import("./overview.js"),
  "dead-letters": () => import("./dead-letters.js"),
  job: () => import("./job.js"),
  jobs: () => import("./jobs.js"),
  ownership: () => import("./ownership.js"),
  queue: () => import("./queue.js"),
  queues: () => import("./queues.js"),
  records: () => import("./records.js"),
  schedules: () => import("./schedules.js"),
  settings: () => import("./settings.js"),
  workers: () => import("./workers.js"),
};
const DETAILS = /** @type {Record<string, string>} */ ({ queues: "queue", jobs: "job" });
const EVERY_MS = 2000;
const TICK_MS = 200;

/** Who the token speaks for, once the server has said so. */
/** @type {{authentication: boolean, subject: string | null, may: string[]} | null} */
let caller = null;
/** @type {{stop: () => void, now: () => void} | null} */
let loop = null;
let [shownHash, lastAnswer, failure] = ["", 0, /** @type {unknown} */ (null)];
/** @type {(() => void) | null} */
let redraw = null;
const root = byId("main");

/** @param {"push" | "write" | "admin"} level */
const may = (level) => !caller || caller.may.includes(level);

async function learnCaller() {
  caller = await optional("/api/v1/caller").catch(() => null);
  const button = byId("caller");
  button.hidden = !caller?.authentication;
  const role = may("admin") ? "admin" : may("write") ? "read-write" : may("push") ? "write-only" : "read-only";
  button.textContent = hasToken() ? `${caller?.subject ?? "token"} · ${role}` : "Sign in";
}

/** Opens what the address names. */
async function open() {
  const { path, params } = here();
  const [place = "overview", ...rest] = path;
  const name = rest.length && DETAILS[place] && SCREENS[DETAILS[place]] ? DETAILS[place] : place;
  const key = [name, ...rest].join("/");
  for (const anchor of document.querySelectorAll("[data-place]")) {
    if (anchor.getAttribute("data-place") === place) {
      anchor.setAttribute("aria-current", "page");
      // Where the screens stand in a row that scrolls, the one that is shown is in sight.
      if (anchor.parentElement) anchor.parentElement.scrollLeft = /** @type {HTMLElement} */ (anchor).offsetLeft - 90;
    } else anchor.removeAttribute("aria-current");
  }
  if (key === shownHash && context) {
    context.params = params;
    context.range = params.get("range") ?? "1h";
    redraw?.();
    loop?.now();
    return;
  }
  shownHash = key;
  loop?.stop();
  [loop, redraw, context] = [null, null, null];
  const opening = SCREENS[name];
  if (!opening) {
    document.title = "Baton";
    render(root, h("div.empty", null, h("h1", null, "There is no such page"), h("p", null, h("a", { href: link("overview") }, "Go to the overview"))));
    return;
  }
  render(root, loading());
  const screen = /** @type {Screen} */ (await opening());
  if (shownHash === key) run(screen, rest, params);
}

/** @type {Context | null} */
let context = null;

/** @param {Screen} screen @param {string[]} path @param {URLSearchParams} params */
function run(screen, path, params) {
  /** @type {any} */
  let data = null;
  const abort = new AbortController();
  const ctx = /** @type {Context} */ ({ path, params, local: {}, signal: abort.signal, redraw: () => draw(), refresh: () => loop?.now(), may, range: params.get("range") ?? "1h" });
  const draw = () => {
    if (context !== ctx) return;
    document.title = `${screen.title(ctx)} · Baton`;
    render(root, [banner(data !== null), data === null ? (failure ? null : loading()) : screen.view(ctx, data)]);
    tick();
  };
  context = ctx;
  redraw = draw;
  failure = null;
  root.scrollTop = 0;
  scrollTo(0, 0);
  loop = live(async (signal) => {
    try {
      ctx.signal = signal;
      const answer = await screen.load(ctx);
      if (signal.aborted) return true;
      data = answer;
      failure = null;
      lastAnswer = Date.now();
    } catch (error) {
      if (signal.aborted) return true;
      if (!(error instanceof ApiError)) console.error(error);
      failure = error;
      if (error instanceof ApiError && [401, 403, 404].includes(error.status)) data = null;
    }
    draw();
    showState();
    return !failure;
  }, screen.every ?? EVERY_MS);
}

const loading = () => h("div.loading", { "aria-busy": "true" }, h("span.hidden", null, "Loading"), [1, 2, 3].map((key) => h("div", { key: String(key) })));

/** What is wrong, above what is still shown. */
/** @param {boolean} hasData */
function banner(hasData) {
  if (!failure) return null;
  const error = failure instanceof ApiError ? failure : null;
  if (error?.status === 401) return signIn(error);
  if (error?.status === 403) {
    return h("div.wall", { key: "wall", role: "alert" }, h("h1", null, "Your token may not read this"), h("p", null, error.message), h("button.primary", { type: "button", onclick: askToken }, "Use another token"));
  }
  if (error?.status === 404) return h("div.wall", { key: "wall", role: "alert" }, h("h1", null, "It is not there"), h("p", null, error.message));
  if (error?.status === 0) {
    const since = lastAnswer ? `No answer for ${duration(Date.now() - lastAnswer)}. ${hasData ? "What is shown is from before." : ""}` : "The server has not answered yet.";
    return h("div.banner.bad", { key: "banner", role: "alert" }, h("b", null, "Disconnected. "), since, " The console keeps trying.");
  }
  return h("div.banner.bad", { key: "banner", role: "alert" }, h("b", null, "The last look failed. "), words(failure));
}

/** @param {ApiError} error */
function signIn(error) {
  const submit = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    await useToken(byId("token").value);
  };
  return h("form.wall", { key: "signin", onsubmit: submit }, h("h1", null, "This server asks for a token"),
    h("p", null, hasToken() ? `It did not take the last one: ${error.message}` : "The console keeps it in memory only: a reload forgets it."),
    h("div.field", null, h("label", { for: "token" }, "Token"), h("input", { id: "token", type: "password", autocomplete: "off", required: true })),
    h("div.actions", null, h("button.primary", { type: "submit" }, "Sign in")),
    h("p.hint", null, "Make one where the secret is: ", h("code", null, "baton token --jwt-secret @jwt.secret --role read-only")));
}

/** @param {string | null} text */
async function useToken(text) {
  setToken(text);
  await learnCaller();
  loop?.now();
}

function askToken() {
  void form({
    title: "Token",
    text: "Kept in memory only: a reload forgets it. Leave it empty to sign out.",
    fields: [{ name: "token", label: "Token", type: "password" }],
    action: "Use",
    submit: ({ token }) => useToken(token),
  });
}

function showState() {
  const button = byId("state");
  const offline = failure instanceof ApiError && failure.status === 0;
  const [text, tone] = isPaused() ? ["Paused", "warn"] : offline ? ["Disconnected", "bad"] : failure ? ["Not live", "warn"] : ["Live", "ok"];
  if (button.textContent !== text) button.textContent = text;
  button.className = `state ${tone}`;
  button.title = isPaused() ? "Go on (p)" : "Pause (p)";
  button.setAttribute("aria-pressed", String(isPaused()));
}

/** Moves what counts down, between two looks. */
function tick() {
  const now = serverNow();
  for (const element of document.querySelectorAll("[data-until]")) {
    const left = Number(element.getAttribute("data-until")) - now;
    const text = countdown(left);
    const label = element.lastChild;
    if (label?.textContent !== text && label) label.textContent = text;
    const total = Number(element.getAttribute("data-total"));
    const fill = /** @type {HTMLElement | null} */ (element.querySelector("i"));
    if (fill && total > 0) {
      const share = Math.min(1, Math.max(0, left / total));
      fill.style.width = `${(share * 100).toFixed(1)}%`;
      fill.className = share < 0.15 ? "bad" : share < 0.35 ? "warn" : "ok";
    }
  }
}

async function about() {
  const health = await api("/health").catch(() => null);
  if (health?.version) render(byId("about"), [h("span", null, health.node ?? ""), h("span", null, `version ${health.version}`)]);
}

theme.apply();
startKeys();
startSearch();
byId("theme").addEventListener("click", theme.next);
byId("help").addEventListener("click", help);
byId("caller").addEventListener("click", askToken);
byId("state").addEventListener("click", () => pause(!isPaused()));
byId("skip").addEventListener("click", (/** @type {Event} */ event) => {
  event.preventDefault();
  root.focus();
});
onPause(showState);
addEventListener("hashchange", () => {
  if (here().path.join() !== "main") void open();
});
setInterval(() => {
  if (!isPaused() && !document.hidden) tick();
  if (failure instanceof ApiError && failure.status === 0) redraw?.();
}, TICK_MS);
void learnCaller().then(() => redraw?.());
void about();
void open();
