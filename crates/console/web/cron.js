// Cron expressions in words, as far as they have short ones.

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
const NAMED = /** @type {Record<string, string>} */ ({ "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *" });

/** @param {string} part @param {string[]} names @param {number} base */
function list(part, names, base) {
  const one = (/** @type {string} */ text) => {
    const index = names.findIndex((name) => name.slice(0, 3).toLowerCase() === text.toLowerCase());
    return names[index >= 0 ? index : (Number(text) - base) % names.length];
  };
  const words = part.split(",").map((piece) => {
    const [from = "", to] = piece.split("-");
    return to ? `${one(from)} to ${one(to)}` : one(from);
  });
  return words.some((word) => !word || word.includes("undefined")) ? null : words.join(", ");
}

/** The expression in words; `null` when there are no short ones. */
/** @param {string} expression @returns {string | null} */
export function cronWords(expression) {
  const text = NAMED[expression.trim()] ?? expression;
  const parts = text.trim().split(/\s+/);
  if (parts.length === 6 && parts[0] === "0") parts.shift();
  const [minute = "", hour = "", day = "", month = "", weekday = ""] = parts;
  if (parts.length !== 5) return null;
  const number = /^\d+$/;
  const step = /^(?:\*|0)\/(\d+)$/;
  let time;
  if (minute === "*" && hour === "*") time = "every minute";
  else if (step.test(minute) && hour === "*") time = `every ${step.exec(minute)?.[1]} minutes`;
  else if (number.test(minute) && hour === "*") time = minute === "0" ? "every hour" : `every hour at minute ${Number(minute)}`;
  else if (number.test(minute) && step.test(hour)) time = `every ${step.exec(hour)?.[1]} hours${minute === "0" ? "" : ` at minute ${Number(minute)}`}`;
  else if (number.test(minute) && /^[\d,]+$/.test(hour)) time = `at ${hour.split(",").map((one) => `${one.padStart(2, "0")}:${minute.padStart(2, "0")}`).join(" and ")}`;
  else return null;
  const when = [];
  if (weekday !== "*" && weekday !== "?") {
    const days = weekday === "1-5" ? "on weekdays" : list(weekday, DAYS, 0);
    if (!days) return null;
    when.push(days.startsWith("on ") ? days : `on ${days}`);
  }
  if (day !== "*" && day !== "?") {
    if (!/^[\d,]+$/.test(day)) return null;
    when.push(`on day ${day.replaceAll(",", ", ")} of ${month === "*" ? "the month" : ""}`.trim());
  }
  if (month !== "*") {
    const months = list(month, MONTHS, 1);
    if (!months) return null;
    when.push(day === "*" ? `in ${months}` : months);
  }
  return [time, ...when].join(" ") || null;
}
