// What a person does: every action works, what destroys asks for the name, keys are enough, and values change by themselves.

import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { launch, open, visit } from "./browser.js";
import { caller, fill } from "./fill.js";
import { Server } from "./server.js";

describe("actions", () => {
  /** @type {Server} */
  let server;
  /** @type {import("playwright-core").Browser} */
  let browser;
  /** @type {ReturnType<typeof caller>} */
  let call;
  /** @type {import("playwright-core").Page} */
  let page;
  /** @type {string[]} */
  let problems;
  /** @type {() => Promise<void>} */
  let close;

  before(async () => {
    [server, browser] = await Promise.all([Server.start(), launch()]);
    await fill(server.url);
    call = caller(server.url);
    ({ page, problems, close } = await open(browser));
  });
  after(async () => {
    await close?.();
    await browser?.close();
    await server?.close();
  });

  const button = (/** @type {string} */ name) => page.getByRole("button", { name, exact: true });
  const dialog = () => page.locator("dialog");
  /** Submits the dialog and waits until it is gone. */
  const submit = async (/** @type {string} */ name) => {
    await dialog().getByRole("button", { name, exact: true }).click();
    await dialog().waitFor({ state: "detached" });
  };
  /** @param {() => Promise<boolean>} condition */
  const eventually = async (condition) => {
    for (const end = Date.now() + 40_000; Date.now() < end; await new Promise((resolve) => setTimeout(resolve, 100))) if (await condition()) return;
    assert.fail(`not reached: ${condition}`);
  };
  const value = (/** @type {string} */ name) => page.locator(".tile", { has: page.getByText(name, { exact: true }) }).locator(".value");

  it("pushes a message, which the page shows by itself", async () => {
    await visit(page, server.url, "queues/audit");
    await eventually(async () => (await value("Depth").textContent()) === "15");
    await button("Push").click();
    await dialog().getByLabel("Payload, JSON").fill('{"by": "hand"}');
    await submit("Push");
    await eventually(async () => (await value("Depth").textContent()) === "16");
    await call("POST", "/api/v1/push", { items: [{ queue: "audit", payload: { by: "another" } }] });
    await eventually(async () => (await value("Depth").textContent()) === "17");
  });

  it("stands still while it is paused", async () => {
    await page.keyboard.press("p");
    await page.getByText("Paused").waitFor();
    await call("POST", "/api/v1/push", { items: [{ queue: "audit", payload: 1 }] });
    await page.waitForTimeout(5000);
    assert.equal(await value("Depth").textContent(), "17");
    await page.keyboard.press("p");
    await eventually(async () => (await value("Depth").textContent()) === "18");
  });

  it("shows a payload and pushes a copy of it", async () => {
    await visit(page, server.url, "queues/invoices?tab=messages");
    await page.locator("#queue-messages tbody button").first().click();
    await page.locator("#message pre").getByText("invoice").first().waitFor();
    assert.equal(await page.locator("#message pre b").count(), 0, "markup in a payload is text");
    await button("Push a copy").click();
    await submit("Push");
  });

  it("changes only the options that were edited", async () => {
    await visit(page, server.url, "queues/emails?tab=options");
    await button("Edit").click();
    await dialog().getByLabel("Lease", { exact: true }).fill("77");
    await submit("Save");
    const { options } = await call("GET", "/api/v1/resources/queues/emails");
    assert.equal(options.leaseTime, 77);
    await page.locator("#queue-options").getByText("77", { exact: true }).waitFor();
  });

  it("moves a group, after its name was typed", async () => {
    await visit(page, server.url, "queues/orders?tab=groups");
    await page.locator("#queue-groups tr", { hasText: "mail" }).getByRole("button", { name: "Seek" }).click();
    await dialog().getByLabel("To", { exact: true }).selectOption("end");
    await dialog().getByLabel("Type mail to confirm").fill("mail");
    await submit("Move");
    await eventually(async () => (await call("GET", "/api/v1/consumer-groups")).find((/** @type {any} */ row) => row.name === "mail").totalLag === 0);
  });

  it("purges and deletes a queue only under its name", async () => {
    await visit(page, server.url, "queues/audit");
    await button("Purge").click();
    await dialog().getByLabel("Type audit to confirm").fill("audits");
    await dialog().getByRole("button", { name: "Purge", exact: true }).click();
    await dialog().getByText("that is not audit").waitFor();
    assert.equal((await call("GET", "/api/v1/resources/queues/audit")).totals.pending, 18);
    await dialog().getByLabel("Type audit to confirm").fill("audit");
    await submit("Purge");
    await eventually(async () => (await value("Depth").textContent()) === "0");
    await button("Delete").click();
    await dialog().getByLabel("Type audit to confirm").fill("audit");
    await submit("Delete");
    await page.waitForURL(/#\/queues$/);
    assert.ok((await call("GET", "/api/v1/resources/queues")).queues.every((/** @type {any} */ row) => row.name !== "audit"));
  });

  it("counts dead letters before it replays or purges them", async () => {
    const dead = async () => (await call("GET", "/api/v1/dlq?queue=invoices")).total;
    assert.equal(await dead(), 6);
    await visit(page, server.url, "dead-letters?queue=invoices");
    await page.locator("#letters").getByRole("button", { name: "Replay", exact: true }).first().click();
    await submit("Replay");
    await eventually(async () => (await dead()) === 5);
    await page.locator("#errors").getByRole("button", { name: "address is missing a postal code" }).click();
    await button("Purge all").click();
    await dialog().getByText(/Counted without touching one: \d letters? in invoices with “address is missing a postal code”/).waitFor();
    await dialog().getByLabel("Type invoices to confirm").fill("invoices");
    await submit("Purge");
    await eventually(async () => (await dead()) <= 3);
    await visit(page, server.url, "dead-letters?queue=invoices");
    await button("Replay all").click();
    await submit("Replay");
    await eventually(async () => (await dead()) === 0);
  });

  it("enqueues a job, cancels it, and shows what became of it", async () => {
    await visit(page, server.url, "jobs");
    await button("Enqueue").click();
    await dialog().getByLabel("Type", { exact: true }).fill("by.hand");
    await dialog().getByLabel("Queue", { exact: true }).fill("unserved");
    await dialog().getByLabel("Arguments, JSON").fill('{"n": 1}');
    await submit("Enqueue");
    await page.getByRole("heading", { name: "by.hand" }).waitFor();
    await button("Cancel").click();
    await dialog().getByLabel("Type by.hand to confirm").fill("by.hand");
    await submit("Cancel the job");
    await page.locator(".head .badge", { hasText: "cancelled" }).waitFor();
    await button("Retry").click();
    await submit("Retry");
    await eventually(async () => (await page.locator(".head .badge").first().textContent()) !== "cancelled");
  });

  it("cancels all jobs that fit, after it has counted them", async () => {
    await call("POST", "/api/v1/jobs:batch", { jobs: Array.from({ length: 5 }, () => ({ jobType: "doomed", queue: "unserved", args: {} })) });
    await visit(page, server.url, "jobs?jobType=doomed");
    await button("Cancel all that fit").click();
    await dialog().getByText("Counted without touching one: 5 jobs").waitFor();
    await dialog().getByLabel("Type all jobs to confirm").fill("all jobs");
    await submit("Cancel the jobs");
    assert.equal((await call("GET", "/api/v1/jobs?jobType=doomed&state=cancelled")).jobs.length, 5);
  });

  it("follows a job's log while it is written", async () => {
    const worker = await call("POST", "/api/v1/workers", { name: "logger", queues: ["logged"] });
    const { jobId } = await call("POST", "/api/v1/jobs", { jobType: "talk", queue: "logged", args: {} });
    const { leases: [lease] } = await call("POST", `/api/v1/workers/${worker.workerId}/lease`, { max: 1, waitMs: 20_000 });
    await visit(page, server.url, `jobs/${jobId}`);
    await page.locator("#held").getByText("logger").waitFor();
    let firstSeq;
    for (const message of ["the first line", "the second line"]) {
      ({ nextSeq: firstSeq } = await call("POST", `/api/v1/executions/${lease.executionId}/logs`, { firstSeq, lines: [{ level: "info", message }] }));
      await page.locator("#log").getByText(message).waitFor();
    }
    assert.equal(await page.locator("#log li").count(), 2, "no line comes twice");
  });

  it("pauses, resumes and fires a schedule", async () => {
    await visit(page, server.url, "schedules/nightly-cleanup");
    await page.getByText("at 03:00, Europe/Berlin").first().waitFor();
    await button("Pause").click();
    await page.locator(".head .badge", { hasText: "paused" }).waitFor();
    await button("Resume").click();
    await page.locator(".head .badge", { hasText: "active" }).waitFor();
    await button("Fire now").click();
    await submit("Fire");
    await eventually(async () => (await call("GET", "/api/v1/jobs?scheduleId=nightly-cleanup")).jobs.length === 1);
  });

  it("drains a worker", async () => {
    await visit(page, server.url, "workers");
    await page.locator("#workers tr", { hasText: "logger" }).getByRole("button", { name: "Drain" }).click();
    await submit("Drain");
    await page.locator("#workers tr", { hasText: "logger" }).getByText("draining").waitFor();
  });

  it("releases a lock and asks a coordinator to step down", async () => {
    await visit(page, server.url, "ownership?kind=lock");
    await page.locator("#leases tr", { hasText: "deploy/eu" }).getByRole("button", { name: "Release" }).click();
    await dialog().getByLabel("Type deploy/eu to confirm").fill("deploy/eu");
    await submit("Release");
    await page.locator("#moves li", { hasText: "deploy/eu" }).waitFor();
    const { results } = await call("POST", "/api/v1/locks", { operations: [{ op: "get", name: "deploy/eu" }] });
    assert.equal(results[0].held, false);
    await call("POST", "/api/v1/elections/compactor", { action: "heartbeat", workerId: "api-2", leaseMs: 60_000 });
    await visit(page, server.url, "ownership?kind=election");
    await page.locator("#leases tr", { hasText: "compactor" }).getByRole("button", { name: "Step down" }).click();
    await dialog().getByLabel("Type compactor to confirm").fill("compactor");
    await submit("Ask");
    await page.locator("#elections").getByText("asked to step down").waitFor();
  });

  it("writes a record only over the version that was seen", async () => {
    await visit(page, server.url, "records?ns=app");
    await button("user/1").click();
    await button("Edit").click();
    await call("PUT", "/api/v1/kv/app/user/1", { value: "meanwhile", forever: true });
    await dialog().getByLabel("Value, JSON").fill('"by hand"');
    await dialog().getByRole("button", { name: "Save" }).click();
    await dialog().getByText("it was written meanwhile").waitFor();
    await page.keyboard.press("Escape");
    await page.locator("#record").getByText("meanwhile").waitFor();
    await button("Edit").click();
    await dialog().getByLabel("Value, JSON").fill('"by hand"');
    await submit("Save");
    assert.equal((await call("GET", "/api/v1/kv/app/user/1")).value, "by hand");
  });

  it("is used with keys alone", async () => {
    await visit(page, server.url, "overview");
    for (const [key, place] of [["q", "queues"], ["d", "dead-letters"], ["j", "jobs"], ["s", "schedules"], ["w", "workers"], ["l", "ownership"], ["r", "records"], ["e", "settings"], ["o", "overview"]]) {
      await page.keyboard.press("g");
      await page.keyboard.press(String(key));
      await page.waitForURL(new RegExp(`#/${place}$`));
    }
    await page.keyboard.press("?");
    await dialog().getByText("ownership: who holds which lease").waitFor();
    await page.keyboard.press("Escape");
    await dialog().waitFor({ state: "detached" });
    await page.keyboard.press("/");
    await page.keyboard.type("orde");
    await page.locator("#found [aria-selected=true]", { hasText: "orders" }).waitFor();
    await page.keyboard.press("Enter");
    await page.waitForURL(/#\/queues\/orders$/);
    await page.getByRole("heading", { name: "orders" }).waitFor();
    // From the top of the page to the button and back out of its dialog.
    await page.evaluate(() => /** @type {any} */ (document.activeElement)?.blur());
    for (let step = 0; step < 60; step++) {
      await page.keyboard.press("Tab");
      if ((await page.evaluate(() => document.activeElement?.textContent)) === "Push") break;
    }
    await page.keyboard.press("Enter");
    await dialog().waitFor();
    assert.equal(await page.evaluate(() => document.activeElement?.getAttribute("name")), "partition");
    await page.keyboard.press("Escape");
    await dialog().waitFor({ state: "detached" });
    assert.equal(await page.evaluate(() => document.activeElement?.textContent), "Push", "the focus comes back");
  });

  it("switches colours and remembers that", async () => {
    for (const expected of ["light", "dark"]) {
      await page.keyboard.press("t");
      assert.equal(await page.evaluate(() => document.documentElement.getAttribute("data-theme")), expected);
    }
    await page.reload();
    await page.waitForFunction(() => document.documentElement.getAttribute("data-theme") === "dark");
    await page.keyboard.press("t");
  });

  it("shows the values under the pointer of a plot", async () => {
    await visit(page, server.url, "overview");
    await page.locator(".plot").first().hover();
    await page.locator(".cursor .note").getByText("Pushed").waitFor();
  });

  it("made no mistake all the while", () => assert.deepEqual(problems, []));
});
