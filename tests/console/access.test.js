// Tokens, roles, and a server that goes away and comes back.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { after, before, describe, it } from "node:test";
import { launch, open, visit } from "./browser.js";
import { caller, fill } from "./fill.js";
import { Server, token } from "./server.js";

const SECRET = randomBytes(32).toString("hex");
/** What buttons of the console do that change something: method, path, body. */
const CHANGES = /** @type {[string, string, any][]} */ ([
  ["POST", "/api/v1/push", { items: [{ queue: "orders", payload: 1 }] }], ["POST", "/api/v1/configure", { queue: "orders", options: { leaseTime: 9 } }],
  ["DELETE", "/api/v1/queues/orders/clear"], ["DELETE", "/api/v1/resources/queues/orders"], ["POST", "/api/v1/consumer-groups/billing/queues/orders/seek", { toEnd: true }],
  ["POST", "/api/v1/dlq:replay", { all: true }], ["POST", "/api/v1/dlq:purge", { all: true }], ["POST", "/api/v1/jobs", { jobType: "x" }], ["POST", "/api/v1/jobs:bulk", { action: "cancel", all: true }],
  ["POST", "/api/v1/job-queues/default/pause", {}], ["POST", "/api/v1/schedules/nightly-cleanup/pause", {}], ["POST", "/api/v1/locks", { operations: [{ op: "release", name: "import", token: 1 }] }],
  ["PUT", "/api/v1/kv/app/x", { value: 1, forever: true }], ["POST", "/api/v1/elections/scheduler", { action: "force" }], ["POST", "/api/v1/system/maintenance", { enabled: true }],
].map(([method, path, body]) => [method, path, body]));

describe("access", () => {
  /** @type {Server} */
  let server;
  /** @type {import("playwright-core").Browser} */
  let browser;

  before(async () => {
    [server, browser] = await Promise.all([Server.start("--jwt-enabled", "true", "--jwt-secret", SECRET), launch()]);
    await fill(server.url, token(SECRET, "admin"));
  });
  after(async () => {
    await browser?.close();
    await server?.close();
  });

  /** @param {import("playwright-core").Page} page @param {string} given */
  const signIn = async (page, given) => {
    await page.getByLabel("Token", { exact: true }).fill(given);
    await page.getByRole("button", { name: "Sign in" }).last().click();
  };

  it("asks for a token, keeps it in memory only, and forgets it with a reload", async () => {
    const { page, close } = await open(browser);
    await page.goto(server.url);
    await page.getByText("This server asks for a token").waitFor();
    await signIn(page, "eyJub3QiOiJnb29kIn0.e30.x");
    await page.getByText("It did not take the last one").waitFor();
    await signIn(page, token(SECRET, "admin"));
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    await page.getByRole("button", { name: "the-admin" }).waitFor();
    const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href]));
    assert.doesNotMatch(kept, /eyJ/);
    await page.reload();
    await page.getByText("This server asks for a token").waitFor();
    await close();
  });

  it("is read-only for a token that may only read, and the server refuses every change", async () => {
    const given = token(SECRET, "read-only");
    const { page, problems, close } = await open(browser);
    await page.goto(`${server.url}/#/queues/orders`);
    await page.getByText("This server asks for a token").waitFor();
    await signIn(page, given);
    await page.getByRole("heading", { name: "orders" }).waitFor();
    problems.length = 0;
    for (const place of ["overview", "queues", "queues/orders?tab=groups", "queues/orders?tab=options", "dead-letters", "dead-letters?of=jobs", "jobs", "schedules", "schedules/nightly-cleanup", "workers", "ownership", "records", "records?tab=locks", "records?tab=timers", "settings"]) {
      await visit(page, server.url, place);
      for (const name of ["Push", "Purge", "Delete", "Edit", "Seek", "Replay", "Replay all", "Purge all", "Enqueue", "Pause", "Limits", "Drain", "Release", "Step down", "New record", "New queue", "New schedule", "Fire now", "Cancel", "Switch on"]) {
        assert.equal(await page.getByRole("button", { name, exact: true }).count(), 0, `${name} on ${place}`);
      }
    }
    await page.getByText("Only an admin may read the settings").waitFor();
    assert.deepEqual(problems, []);
    for (const [method, path, body] of CHANGES) {
      const status = await page.evaluate(async ([method, path, body, given]) => (await fetch(path, { method, headers: { authorization: `Bearer ${given}`, "content-type": "application/json" }, body: body && JSON.stringify(body) })).status, [method, path, body, given]);
      assert.equal(status, 403, `${method} ${path}`);
    }
    await close();
  });

  it("tells a token that may not read so", async () => {
    const { page, close } = await open(browser);
    await page.goto(server.url);
    await page.getByText("This server asks for a token").waitFor();
    await signIn(page, token(SECRET, "write-only"));
    await page.getByText("Your token may not read this").waitFor();
    await close();
  });

  it("shows a refusal in the dialog when the token lost a right meanwhile", async () => {
    const { page, close } = await open(browser);
    await page.goto(`${server.url}/#/queues/orders`);
    await page.getByText("This server asks for a token").waitFor();
    await signIn(page, token(SECRET, "admin"));
    await page.getByRole("heading", { name: "orders" }).waitFor();
    await page.route("**/clear", (route) => route.continue({ headers: { ...route.request().headers(), authorization: `Bearer ${token(SECRET, "read-only")}` } }));
    await page.getByRole("button", { name: "Purge", exact: true }).click();
    await page.getByLabel("Type orders to confirm").fill("orders");
    await page.locator("dialog").getByRole("button", { name: "Purge", exact: true }).click();
    await page.locator("dialog").getByText("Your token does not allow this").waitFor();
    await close();
  });
});

describe("a server that goes away", () => {
  it("leaves what was seen, says so, and is live again when it is back", async () => {
    const [server, browser] = await Promise.all([Server.start(), launch()]);
    try {
      const call = caller(server.url);
      await call("POST", "/api/v1/push", { items: [{ queue: "kept", payload: 1 }] });
      const { page, close } = await open(browser);
      await visit(page, server.url, "queues");
      await page.getByRole("link", { name: "kept" }).waitFor();
      await server.kill();
      await page.getByText("Disconnected.").waitFor();
      await page.locator("#state.bad").waitFor();
      assert.equal(await page.getByRole("link", { name: "kept" }).count(), 1, "what was seen stays");
      await server.launch();
      await page.getByText("Disconnected.").waitFor({ state: "detached" });
      await page.locator("#state.ok").waitFor();
      await call("POST", "/api/v1/push", { items: [{ queue: "after", payload: 1 }] });
      await page.getByRole("link", { name: "after" }).waitFor();
      await close();
    } finally {
      await browser.close();
      await server.close();
    }
  });
});
