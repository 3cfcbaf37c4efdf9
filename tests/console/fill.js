// A server with something on every screen: queues with consumers, fast, slow and failing; jobs with logs, progress and
// dependencies; schedules, shards, elections, locks, records and timers. `fill` makes them, `keepAlive` has them move on.

/** @param {string} base @param {string | null} [token] */
export function caller(base, token = null) {
  return async (/** @type {string} */ method, /** @type {string} */ path, /** @type {any} */ body = undefined) => {
    const headers = { ...(body === undefined ? {} : { "content-type": "application/json" }), ...(token ? { authorization: `Bearer ${token}` } : {}) };
    const response = await fetch(base + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return text ? JSON.parse(text) : null;
  };
}

const push = (call, queue, count, partition = () => "Default", payload = (n) => ({ number: n, customer: `customer-${n % 7}`, total: 12.5 * n })) =>
  call("POST", "/api/v1/push", { items: Array.from({ length: count }, (_, n) => ({ queue, partition: partition(n), payload: payload(n) })) });

const pop = async (call, queue, group, batch) => {
  const query = new URLSearchParams({ batch: String(batch), ...(group ? { consumerGroup: group, subscriptionMode: "all" } : {}) });
  return (await call("GET", `/api/v1/pop/queue/${queue}?${query}`))?.messages ?? [];
};

const ack = (call, messages, status, group, error) =>
  messages.length && call("POST", "/api/v1/ack/batch", {
    ...(group ? { consumerGroup: group } : {}),
    acknowledgments: messages.map((m) => ({ transactionId: m.transactionId, partitionId: m.partitionId, leaseId: m.leaseId, status, ...(error ? { error } : {}) })),
  });

/** @param {string} base @param {string | null} [token] */
export async function fill(base, token = null) {
  const call = caller(base, token);
  for (const [queue, options] of Object.entries({
    orders: { leaseTime: 45, retryLimit: 3 }, emails: { leaseTime: 20 }, invoices: { leaseTime: 30, retryLimit: 0 }, audit: {}, thumbnails: { leaseTime: 15, priority: 5 },
  })) await call("POST", "/api/v1/configure", { queue, namespace: queue === "audit" ? "ops" : "shop", options });
  await push(call, "orders", 240, (n) => `customer-${n % 12}`);
  await push(call, "emails", 60);
  await push(call, "audit", 15);
  await push(call, "thumbnails", 90, (n) => `bucket-${n % 4}`);
  await push(call, "invoices", 12, (n) => `tenant-${n % 3}`, (n) => ({ invoice: `2026-${100 + n}`, lines: [{ sku: "A-1", quantity: n }], html: "<b>not a tag</b>" }));
  for (let round = 0; round < 6; round++) {
    await ack(call, await pop(call, "invoices", null, 1), "failed", null, round % 2 ? "connection to the tax service refused" : "address is missing a postal code");
  }
  for (const group of ["billing", "mail"]) await ack(call, await pop(call, "orders", group, 10), "completed", group);

  const worker = await call("POST", "/api/v1/workers", { name: "render-1", queues: ["default", "reports"], maxConcurrency: 8, version: "2.4.1", labels: { zone: "eu-1" } });
  const other = await call("POST", "/api/v1/workers", { name: "render-2", queues: ["default"], maxConcurrency: 4, version: "2.4.1", labels: { zone: "eu-2" } });
  const first = await call("POST", "/api/v1/jobs", { jobType: "report.build", queue: "reports", args: { month: "2026-10", format: "pdf" }, tags: ["monthly"], correlationId: "run-7" });
  await call("POST", "/api/v1/jobs", { jobType: "report.send", queue: "reports", args: { to: "finance" }, dependsOn: [first.jobId], correlationId: "run-7" });
  await call("POST", "/api/v1/jobs:batch", { jobs: Array.from({ length: 24 }, (_, n) => ({ jobType: n % 3 ? "image.resize" : "video.encode", args: { file: `cat-${n}.png`, width: 640 }, priority: n % 4, retry: { maxRetries: 0 }, tags: [n % 2 ? "free" : "paid"] })) });
  await call("POST", "/api/v1/jobs", { jobType: "cleanup", queue: "nightly", args: {}, delayMs: 3_600_000 });
  await call("POST", "/api/v1/jobs", { jobType: "migrate", queue: "unserved", args: { table: "orders" } });
  const { leases } = await call("POST", `/api/v1/workers/${worker.workerId}/lease`, { max: 6 });
  const items = leases.slice(0, 4).map((lease, n) => ({
    jobId: lease.jobId, executionId: lease.executionId, fence: lease.fence,
    ...(n < 2 ? { outcome: "succeeded", result: { bytes: 48_213, url: "/files/1" } } : { outcome: "failed", error: { type: "DecodeError", message: "truncated JPEG at byte 4096", retryable: false } }),
  }));
  if (leases[4]) {
    await call("POST", `/api/v1/executions/${leases[4].executionId}/logs`, { lines: [{ level: "info", message: "opened cat.png" }, { level: "debug", message: "640 × 480" }, { level: "warn", message: "no colour profile, sRGB is taken" }, { level: "error", message: "first pass failed, trying again" }] });
    await call("POST", `/api/v1/workers/${worker.workerId}/heartbeat`, { running: [{ jobId: leases[4].jobId, fence: leases[4].fence, progress: { percent: 40, message: "encoding" } }] });
  }
  await call("POST", "/api/v1/executions:report", { items });
  await call("PUT", "/api/v1/schedules/nightly-cleanup", { kind: "cron", cron: "0 3 * * *", timeZone: "Europe/Berlin", job: { jobType: "cleanup", queue: "nightly", args: {} } });
  await call("PUT", "/api/v1/schedules/poll-feed", { kind: "interval", everyMs: 60_000, job: { jobType: "image.resize", args: { feed: 1 } } });
  await call("PUT", "/api/v1/schedules/weekday-digest", { kind: "cron", cron: "30 8 * * 1-5", job: { jobType: "report.build", queue: "reports" }, enabled: false });

  for (const [n, workerId] of ["ingest-a", "ingest-b", "ingest-c"].entries()) {
    await call("POST", "/api/v1/shards/ingest", { action: "register", workerId, sessionId: `s${n}`, maxShardCount: 128, weight: n + 1 });
  }
  await call("POST", "/api/v1/shards/search", { action: "register", workerId: "index-1", sessionId: "s", maxShardCount: 24 });
  for (const workerId of ["api-1", "api-2", "api-3"]) await call("POST", "/api/v1/elections/scheduler", { action: "join", workerId, leaseMs: 20_000 });
  await call("POST", "/api/v1/elections/compactor", { action: "join", workerId: "api-2", leaseMs: 60_000 });
  await call("POST", "/api/v1/locks", { operations: [
    { op: "acquire", name: "deploy/eu", owner: "ci-4711", ttlSeconds: 240 }, { op: "acquire", name: "import", owner: "batch-2", ttlSeconds: 75, limit: 3 },
  ] });
  await call("POST", "/api/v1/locks", { operations: [{ op: "acquire", name: "import", owner: "batch-9", ttlSeconds: 500, limit: 3 }] });
  for (const [key, value] of [["user/1", { name: "Ada", plan: "pro" }], ["user/2", { name: "Grace", plan: "free" }], ["flag/new-cart", true]]) {
    await call("PUT", `/api/v1/kv/app/${key}`, { value, forever: true });
  }
  await call("PUT", "/api/v1/kv/sessions/7f3a", { value: { user: 1 }, ttlSeconds: 900 });
  await call("POST", "/api/v1/timers", { operations: [{ op: "schedule", queue: "emails", timerKey: "reminder-1", payload: Buffer.from('{"to":"ada"}').toString("base64"), delayMs: 5_400_000 }] });
  return { workers: [worker.workerId, other.workerId], job: leases[4]?.jobId, failed: leases[2]?.jobId, first: first.jobId };
}

/**
 * Has producers, consumers, workers and candidates go on until the returned function is called.
 * @param {string} base @param {{workers: string[]}} made @param {string | null} [token]
 */
export function keepAlive(base, made, token = null) {
  const call = caller(base, token);
  let [round, stopped] = [0, false];
  /** @type {Map<string, any[]>} */
  const running = new Map(made.workers.map((id) => [id, []]));
  /** @type {Map<string, any>} */
  const shards = new Map();
  const step = async () => {
    round++;
    await push(call, "orders", 3 + (round % 5), (n) => `customer-${(round + n) % 12}`);
    if (round % 2) await push(call, "thumbnails", 2, (n) => `bucket-${n}`);
    const got = await pop(call, "orders", "billing", 6);
    setTimeout(() => ack(call, got, "completed", "billing")?.catch(() => {}), 900);
    if (round % 6 === 0) await pop(call, "orders", "mail", 2);
    await ack(call, await pop(call, "thumbnails", null, 4), "completed", null);
    if (round % 3 === 0) await call("POST", "/api/v1/jobs", { jobType: "image.resize", args: { file: `dog-${round}.png` }, retry: { maxRetries: 0 } });
    for (const [id, held] of running) {
      const { leases } = held.length < 3 ? await call("POST", `/api/v1/workers/${id}/lease`, { max: 1 }) : { leases: [] };
      held.push(...leases);
      await call("POST", `/api/v1/workers/${id}/heartbeat`, { running: held.map((lease) => ({ jobId: lease.jobId, fence: lease.fence, progress: { percent: (round * 7) % 100, message: "working" } })) });
      if (held.length && round % 8 === 0) {
        const lease = held.shift();
        await call("POST", "/api/v1/executions:report", { items: [{ jobId: lease.jobId, executionId: lease.executionId, fence: lease.fence, outcome: "succeeded", result: { ok: true } }] });
      }
    }
    if (round % 5 === 0) {
      for (const workerId of ["api-1", "api-2", "api-3"]) await call("POST", "/api/v1/elections/scheduler", { action: "heartbeat", workerId, leaseMs: 20_000 });
      for (const [n, workerId] of ["ingest-a", "ingest-b", "ingest-c"].entries()) {
        const said = { action: "heartbeat", workerId, sessionId: `s${n}`, weight: n + 1 };
        // What is to be given up is given up at once: the generation that was answered is confirmed with what is left.
        const told = await call("POST", "/api/v1/shards/ingest", { ...said, ...(shards.get(workerId) ?? {}) });
        shards.set(workerId, { generation: told.generation, ranges: told.grants.map((/** @type {any} */ grant) => [grant.from, grant.to]) });
      }
      await call("POST", "/api/v1/shards/search", { action: "heartbeat", workerId: "index-1", sessionId: "s" });
    }
  };
  const run = async () => {
    while (!stopped) {
      await step().catch((error) => process.env.FILL_LOG && console.error(String(error)));
      await new Promise((resolve) => setTimeout(resolve, 400));
    }
  };
  const done = run();
  return async () => {
    stopped = true;
    await done;
  };
}
