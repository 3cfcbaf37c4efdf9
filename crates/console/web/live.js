// Keeps a page current: asks again a while after each answer, less often while the server is away, and not at all while
// the page is paused or hidden.

const RETRY_MAX_MS = 10_000;

let paused = false;
/** @type {Set<() => void>} */
const loops = new Set();
/** @type {(() => void)[]} */
const listeners = [];

export const isPaused = () => paused;

/** @param {() => void} listener */
export const onPause = (listener) => listeners.push(listener);

/** @param {boolean} on */
export function pause(on) {
  paused = on;
  listeners.forEach((listener) => listener());
  if (!on) loops.forEach((wake) => wake());
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) loops.forEach((wake) => wake());
});

/**
 * Runs `look` now and again `everyMs` after each end, until the returned function is called.
 * @param {(signal: AbortSignal) => Promise<boolean>} look answers whether the server did
 * @param {number} everyMs
 * @returns {{stop: () => void, now: () => void}}
 */
export function live(look, everyMs) {
  const abort = new AbortController();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let [busy, again, failures] = [false, false, 0];
  const run = async () => {
    if (abort.signal.aborted) return;
    if (busy) {
      again = true;
      return;
    }
    clearTimeout(timer);
    busy = true;
    const answered = await look(abort.signal);
    busy = false;
    failures = answered ? 0 : failures + 1;
    if (abort.signal.aborted) return;
    if (again) {
      again = false;
      void run();
      return;
    }
    schedule(answered ? everyMs : Math.min(everyMs * 2 ** Math.min(failures - 1, 4), RETRY_MAX_MS));
  };
  const schedule = (/** @type {number} */ ms) => {
    timer = setTimeout(() => {
      if (!paused && !document.hidden) void run();
    }, ms);
  };
  const wake = () => void run();
  loops.add(wake);
  void run();
  return {
    stop() {
      loops.delete(wake);
      abort.abort();
      clearTimeout(timer);
    },
    now: wake,
  };
}
