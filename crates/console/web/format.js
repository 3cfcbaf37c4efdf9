// Numbers, times and ages as a person reads them.

const COUNT = new Intl.NumberFormat("en-US");
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const MINUTE = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const FULL = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** @param {number | null | undefined} value */
export const count = (value) => (value === null || value === undefined || Number.isNaN(value) ? "–" : COUNT.format(Math.round(value)));

/** A count that has little room: 12.3 k. */
/** @param {number} value */
export function short(value) {
  if (!Number.isFinite(value)) return "–";
  for (const [size, unit] of /** @type {[number, string][]} */ ([[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e4, " k"]])) {
    if (Math.abs(value) >= size) return digits(value / (size === 1e4 ? 1e3 : size)) + unit;
  }
  return digits(value);
}

/** @param {number} value */
function digits(value) {
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return COUNT.format(Math.round(value));
  return value.toFixed(size >= 10 ? 1 : 2).replace(/\.?0+$/, "");
}

/** A rate, in the unit that stands beside it. */
/** @param {number} value */
export const rate = (value) => (value >= 100 ? short(Math.round(value)) : digits(Math.round(value * 100) / 100));

/** @param {number} value */
export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  let size = value;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(size) < 1024 || unit === "TiB") return `${digits(Math.round(size * 10) / 10)} ${unit}`;
    size /= 1024;
  }
  return "–";
}

/** How long: 4.2 s, 14 min, 3 h 20 min. */
/** @param {number} ms */
export function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  const days = Math.floor(hours / 24);
  return hours % 24 ? `${days} d ${hours % 24} h` : `${days} d`;
}

/** An age that the API tells in whole seconds. */
/** @param {number} seconds */
export const age = (seconds) => (seconds < 1 ? "< 1 s" : duration(seconds * 1000));

/** What remains, with tenths while it is short, so that a countdown moves. */
/** @param {number} ms */
export function countdown(ms) {
  if (ms <= 0) return "over";
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.floor(ms / 1000);
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  const two = (/** @type {number} */ number) => String(number).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(seconds % 60)}` : `${minutes}:${two(seconds % 60)}`;
}

/** @param {any} at */
export const millis = (at) => (at === null || at === undefined ? NaN : typeof at === "number" ? at : Date.parse(at));

/** How long ago, by the server's clock. */
/** @param {any} at @param {number} now */
export const ago = (at, now) => (Number.isNaN(millis(at)) ? "–" : duration(now - millis(at)));

/** @param {any} at */
export const clock = (at) => (Number.isNaN(millis(at)) ? "–" : CLOCK.format(millis(at)));

/** The time of day, with the day if it is another one. */
/** @param {any} at @param {number} now */
export function moment(at, now) {
  const ms = millis(at);
  if (Number.isNaN(ms)) return "–";
  return Math.abs(now - ms) < 20 * 3_600_000 ? CLOCK.format(ms) : DAY.format(ms);
}

/** @param {any} at */
export const full = (at) => (Number.isNaN(millis(at)) ? "" : FULL.format(millis(at)));

/** A label of a time axis. */
/** @param {number} at @param {number} span */
export const axisTime = (at, span) => (span > 26 * 3_600_000 ? DAY.format(at) : MINUTE.format(at));

/** @param {number} number @param {string} one @param {string} [many] */
export const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many ?? `${one}s`}`;

/** An id that has little room. */
/** @param {string | null | undefined} id */
export const brief = (id) => (!id ? "–" : id.length > 20 ? `${id.slice(0, 8)}…${id.slice(-4)}` : id);

/** What consumers without a group are called. */
/** @param {string} group */
export const groupName = (group) => (group === "__QUEUE_MODE__" ? "(no group)" : group);
