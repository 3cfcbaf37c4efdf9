// Deep links: the part of the address behind `#` names the screen, what it shows and its filters.

/** @typedef {{path: string[], params: URLSearchParams}} Place */

/** Where the address leads. */
/** @returns {Place} */
export function here() {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const decoded = path.split("/").filter(Boolean).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { path: decoded.length ? decoded : ["overview"], params: new URLSearchParams(query) };
}

/** The address of a place: `link("queues", "orders")`. The last argument may hold parameters. */
/** @param {...(string | number | Record<string, any>)} parts */
export function link(...parts) {
  const last = parts.at(-1);
  const params = typeof last === "object" ? last : {};
  const path = parts.filter((part) => typeof part !== "object").map((part) => encodeURIComponent(String(part))).join("/");
  const pairs = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)])).toString();
  return `#/${path}${query ? `?${query}` : ""}`;
}

/** Goes there. */
/** @param {...(string | number | Record<string, any>)} parts */
export function go(...parts) {
  location.hash = link(...parts);
}

/** Changes parameters of the address, without a step in the history. */
/** @param {Record<string, any>} changes */
export function adjust(changes) {
  const { path, params } = here();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") params.delete(name);
    else params.set(name, String(value));
  }
  history.replaceState(null, "", link(...path, Object.fromEntries(params)));
  dispatchEvent(new HashChangeEvent("hashchange"));
}
