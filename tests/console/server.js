// A Baton server as a process of its own, on a directory that is gone afterwards.

import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
export const BINARY = process.env.BATON_BIN ?? join(ROOT, "target/debug/baton");
const START_MS = 60_000;

/** The environment without settings of a server. */
const plain = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^(BATON_|QUEEN_|JWT_|POP_WAIT_|DEFAULT_)/.test(name)));

async function freePort() {
  const listener = createServer().listen(0, "127.0.0.1");
  await once(listener, "listening");
  const { port } = /** @type {import("node:net").AddressInfo} */ (listener.address());
  listener.close();
  await once(listener, "close");
  return port;
}

export class Server {
  /** @param {...string} args */
  static async start(...args) {
    const server = new Server(await freePort(), mkdtempSync(join(tmpdir(), "baton-console-")), args);
    await server.launch();
    return server;
  }

  /** @param {number} port @param {string} data @param {string[]} args */
  constructor(port, data, args) {
    this.port = port;
    this.data = data;
    this.args = args;
    this.url = `http://127.0.0.1:${port}`;
    /** @type {import("node:child_process").ChildProcess | null} */
    this.process = null;
  }

  /** Starts the process, again on the same port and directory. */
  async launch() {
    const child = spawn(BINARY, ["serve", "--listen", `127.0.0.1:${this.port}`, "--data", this.data, ...this.args], { env: plain, stdio: ["ignore", "ignore", "pipe"] });
    let output = "";
    child.stderr?.on("data", (text) => (output = (output + text).slice(-8000)));
    this.process = child;
    for (const end = Date.now() + START_MS; Date.now() < end; ) {
      if (child.exitCode !== null) throw new Error(`the server ended with ${child.exitCode}:\n${output}`);
      const answer = await fetch(`${this.url}/health`).catch(() => null);
      if (answer?.ok) return;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    throw new Error(`the server did not start:\n${output}`);
  }

  /** Kills the process; the directory stays. */
  async kill() {
    const child = this.process;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const ended = once(child, "exit");
    child.kill("SIGKILL");
    await ended;
  }

  async close() {
    await this.kill();
    rmSync(this.data, { recursive: true, force: true });
  }
}

/** A token of that role. */
/** @param {string} secret @param {string} role */
export const token = (secret, role) => execFileSync(BINARY, ["token", "--jwt-secret", secret, "--role", role, "--sub", `the-${role}`], { env: plain, encoding: "utf8" }).trim();
