// Calls of the HTTP API. The token lives in this module and nowhere else: a reload forgets it.

/** @type {string | null} */
let token = null;
/** How far the server's clock is ahead of this one, in milliseconds. */
let skew = 0;

/** An answer that is an error, or none at all. */
export class ApiError extends Error {
  /** @param {number} status 0 when the server did not answer @param {string} code @param {string} message */
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** @param {string | null} given */
export function setToken(given) {
  token = given?.trim().replace(/^Bearer\s+/i, "") || null;
}

export const hasToken = () => token !== null;

/** Headers of a request, with the token if there is one. */
/** @param {Record<string, string>} [more] @returns {Record<string, string>} */
export function headers(more = {}) {
  return token ? { ...more, authorization: `Bearer ${token}` } : more;
}

/**
 * Calls the API; the answer's JSON, or an `ApiError`.
 * @param {string} path with its query
 * @param {{method?: string, body?: any, signal?: AbortSignal, headers?: Record<string, string>}} [options]
 * @returns {Promise<any>}
 */
export async function api(path, options = {}) {
  const { method = "GET", body, signal } = options;
  /** @type {Response} */
  let response;
  try {
    response = await fetch(path, {
      method,
      signal: signal ?? null,
      cache: "no-store",
      headers: headers({ ...options.headers, ...(body === undefined ? {} : { "content-type": "application/json" }) }),
      body: body === undefined ? null : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", "the server does not answer");
  }
  const text = await response.text();
  /** @type {any} */
  let json = null;
  try {
    json = text ? JSON.parse(text) : null;
  } catch {
    json = null;
  }
  if (!response.ok) {
    const message = json?.detail ?? json?.error ?? (text.slice(0, 200) || response.statusText);
    throw new ApiError(response.status, json?.code ?? String(response.status), String(message));
  }
  return json;
}

/** What a part of a page may lack: `null` where the token may not read it, or the route is not there. */
/** @param {string} path @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function optional(path, signal) {
  try {
    return await api(path, signal ? { signal } : {});
  } catch (error) {
    if (error instanceof ApiError && [403, 404, 501].includes(error.status)) return null;
    throw error;
  }
}

/** @param {string} path @param {any} [body] */
export const post = (path, body = {}) => api(path, { method: "POST", body });
/** @param {string} path @param {any} body @param {Record<string, string>} [more] */
export const put = (path, body, more = {}) => api(path, { method: "PUT", body, headers: more });
/** @param {string} path */
export const remove = (path) => api(path, { method: "DELETE" });

/** A segment of a path. */
/** @param {string | number} text */
export const seg = (text) => encodeURIComponent(String(text));

/** A query, without what is empty. */
/** @param {Record<string, any>} given */
export function query(given) {
  const pairs = Object.entries(given).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return pairs.length ? `?${new URLSearchParams(pairs.map(([name, value]) => [name, String(value)]))}` : "";
}

/** Takes the time that an answer carries for the server's. */
/** @param {string | undefined} timestamp */
export function learnClock(timestamp) {
  const at = timestamp ? Date.parse(timestamp) : NaN;
  if (!Number.isNaN(at)) skew = at - Date.now();
}

/** The time by the server's clock, as far as it is known. */
export const serverNow = () => Date.now() + skew;
