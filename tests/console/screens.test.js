// Every screen on a server with nothing and on one with everything: no error, accessible, as wide as the window.

import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { assertAccessible, assertFits, launch, open, visit } from "./browser.js";
import { caller, fill, keepAlive } from "./fill.js";
import { Server } from "./server.js";

const PLACES = ["overview", "queues", "dead-letters", "dead-letters?of=jobs", "jobs", "schedules", "workers", "ownership", "records", "records?tab=locks", "records?tab=timers", "records?tab=traces", "settings"];
const DETAILS = ["queues/orders", "queues/orders?tab=groups", "queues/orders?tab=partitions", "queues/orders?tab=messages", "queues/orders?tab=options", "schedules/nightly-cleanup", "ownership?kind=shard&service=ingest", "ownership?kind=election"];

describe("screens", () => {
  /** @type {Server} */
  let empty;
  /** @type {Server} */
  let filled;
  /** @type {import("playwright-core").Browser} */
  let browser;
  /** @type {Awaited<ReturnType<typeof fill>>} */
  let made;
  /** @type {() => Promise<void>} */
  let quiet = async () => {};

  before(async () => {
    [empty, filled, browser] = await Promise.all([Server.start(), Server.start(), launch()]);
    made = await fill(filled.url);
    quiet = keepAlive(filled.url, made);
  });
  after(async () => {
    await quiet();
    await browser?.close();
    await Promise.all([empty?.close(), filled?.close()]);
  });

  it("say honestly that a new server has nothing", async () => {
    const { page, problems, close } = await open(browser);
    for (const place of PLACES) await visit(page, empty.url, place);
    await visit(page, empty.url, "overview");
    await page.getByText("There is no queue yet").waitFor();
    await assertAccessible(page);
    assert.deepEqual(problems, []);
    await close();
  });

  for (const [name, dark, width] of /** @type {[string, boolean, number][]} */ ([["light", false, 1440], ["dark", true, 390]])) {
    it(`show a busy server without an error, accessible and fitting: ${name}, ${width} pixels`, async () => {
      const { page, problems, close } = await open(browser, { dark, width });
      for (const place of [...PLACES, ...DETAILS, `jobs/${made.first}`, `jobs/${made.failed}`]) {
        await visit(page, filled.url, place);
        await assertFits(page);
        // What differs between the two is colours and places, not names and roles.
        await assertAccessible(page, dark ? ["color-contrast"] : []);
      }
      assert.deepEqual(problems, []);
      await close();
    });
  }

  it("say what is not there", async () => {
    const { page, close } = await open(browser);
    await page.goto(`${filled.url}/#/queues/no-such-queue`);
    await page.getByText("It is not there").waitFor();
    await page.goto(`${filled.url}/#/nowhere`);
    await page.getByText("There is no such page").waitFor();
    await close();
  });

  it("say in words what needs attention first", async () => {
    const { page, close } = await open(browser);
    await visit(page, filled.url, "overview");
    const attention = page.locator("#attention");
    await attention.getByText("no worker takes jobs of this queue").waitFor();
    await attention.getByText("6 dead letters").waitFor();
    await attention.locator("li", { hasText: "dead letters" }).getByRole("link").click();
    await page.locator("#errors").getByText("address is missing a postal code").waitFor();
    await close();
  });

  it("show every kind of lease with its owner, its token and a countdown", async () => {
    const { page, close } = await open(browser);
    await visit(page, filled.url, "ownership");
    for (const [kind, owner] of [["partition", "billing"], ["job", "render-"], ["shard", "ingest-a"], ["election", "api-"], ["lock", "ci-4711"], ["server", "baton-1"]]) {
      await page.goto(`${filled.url}/#/ownership?kind=${kind}`);
      await page.locator("#leases tbody tr").filter({ hasText: owner }).filter({ has: page.locator("code.token") }).first().waitFor();
    }
    await page.goto(`${filled.url}/#/ownership?kind=lock`);
    const left = page.locator("#leases tr", { hasText: "deploy/eu" }).locator(".left");
    const seen = await left.textContent();
    await page.waitForFunction((seen) => [...document.querySelectorAll("#leases tr")].find((row) => row.textContent?.includes("deploy/eu"))?.querySelector(".left")?.textContent !== seen, seen);
    await close();
  });

  it("draw each shard in the colour of its owner and note who it moved to", async () => {
    const { page, close } = await open(browser);
    const tell = (/** @type {any} */ body) => caller(filled.url)("POST", "/api/v1/shards/moving", body);
    await tell({ action: "register", workerId: "from", sessionId: "s", maxShardCount: 24 });
    await visit(page, filled.url, "ownership?kind=shard&service=moving");
    await page.waitForFunction(() => document.querySelectorAll("#map-moving rect.free ~ rect:not(.free)").length === 24);
    await tell({ action: "release", workerId: "from", sessionId: "s" });
    await tell({ action: "register", workerId: "to", sessionId: "t", maxShardCount: 24 });
    await page.locator("#moves li").filter({ hasText: "moving" }).filter({ hasText: "to" }).first().waitFor();
    await page.locator("#map-moving tr", { hasText: "to" }).getByText("24", { exact: true }).waitFor();
    await close();
  });
});
