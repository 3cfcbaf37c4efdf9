// A real Chromium, and a page that remembers what went wrong in it.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

/** How long to wait for a condition: machines that build meanwhile are slow. */
export const PATIENCE_MS = 40_000;

export const launch = () => chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });

/**
 * A page in a context of its own.
 * @param {import("playwright-core").Browser} browser
 * @param {{width?: number, dark?: boolean}} [given]
 */
export async function open(browser, { width = 1440, dark = false } = {}) {
  const context = await browser.newContext({ viewport: { width, height: width < 600 ? 844 : 900 }, colorScheme: dark ? "dark" : "light" });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  /** @type {string[]} */
  const problems = [];
  page.on("console", (message) => message.type() === "error" && problems.push(`${page.url()}: ${message.text()}`));
  page.on("pageerror", (error) => problems.push(`${page.url()}: ${error.stack}`));
  return { page, problems, close: () => context.close() };
}

/** Shows a screen and waits until it shows what the server said. */
/** @param {import("playwright-core").Page} page @param {string} url @param {string} place */
export async function visit(page, url, place) {
  await page.goto(`${url}/#/${place}`);
  // A change behind the `#` alone does not load the page again, so the frame is told which screen is meant.
  const name = place.split(/[/?]/)[0];
  await page.waitForFunction((name) => document.querySelector("[aria-current]")?.getAttribute("data-place") === name, name);
  await page.locator("main h1").first().waitFor();
  await page.waitForFunction(() => !document.querySelector("main .loading"));
}

/** @param {import("playwright-core").Page} page @param {string[]} [rules] only these */
export async function assertAccessible(page, rules = []) {
  const session = await page.context().newCDPSession(page);
  await session.send("Runtime.evaluate", { expression: AXE });
  await session.detach();
  const { violations } = await page.evaluate((rules) => /** @type {any} */ (globalThis).axe.run(document, rules.length ? { runOnly: rules } : {}), rules);
  const grave = violations.filter((/** @type {any} */ one) => ["serious", "critical"].includes(one.impact));
  const told = grave.map((/** @type {any} */ one) => `${one.id}: ${one.nodes.map((/** @type {any} */ node) => `${node.target} ${node.failureSummary}`).slice(0, 3).join("\n")}`);
  assert.deepEqual(told, [], page.url());
}

/** @param {import("playwright-core").Page} page */
export async function assertFits(page) {
  const beyond = await page.evaluate(() => {
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= width) return [];
    const found = [...document.querySelectorAll("body *")].filter((one) => one.getBoundingClientRect().right > width + 1 && !one.parentElement?.closest(".table, .places, .scroll")).map((one) => `${one.nodeName}.${one.getAttribute("class")} ends at ${Math.round(one.getBoundingClientRect().right)}`);
    return found.length ? found : [`something is ${document.documentElement.scrollWidth} pixels wide`];
  });
  assert.deepEqual(beyond, [], `${page.url()} is wider than the window`);
}
