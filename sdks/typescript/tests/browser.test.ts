/** In a real browser, with no bundler: modules by an import map, a server of another origin, few sockets. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { accessSync, constants, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { type IncomingMessage, type ServerResponse, createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { delimiter, extname, join, normalize } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { TOKEN, TestServer } from "./support/server.js";
import { Arrival, within } from "./support/waiting.js";

const ROOT = fileURLToPath(new URL("../", import.meta.url));
const CHROMIUM = ["chromium", "chromium-browser", "google-chrome"]
  .flatMap((name) => (process.env["PATH"] ?? "").split(delimiter).map((folder) => join(folder, name)))
  .find(isProgram);

const IMPORTS = {
  "sandbox-agent": "/dist/index.js",
  "@agentclientprotocol/sdk": "/node_modules/@agentclientprotocol/sdk/dist/v1/stable/acp.js",
  "zod/v4": "/node_modules/zod/v4/index.js",
};

/** Runs in the page; tells what it found by a POST. */
const PAGE = `
  import { SandboxAgent, RequestError, textOf } from "sandbox-agent";

  const { url, token, cwd } = SETTINGS;
  const found = {};
  const preferred = new Set();
  const watched = (input, init) => {
    if (init.method === "POST" && init.headers["Prefer"]) preferred.add(init.headers["Prefer"]);
    return fetch(input, init);
  };
  try {
    const client = await SandboxAgent.connect(url, { token, agent: "scripted", fetch: watched });
    const session = await client.sessions.create({ cwd });
    found.text = await session.prompt(JSON.stringify([["flood", 500, 20], ["say", "Grüße"]])).text();
    found.preferred = [...preferred];

    // More turns than a browser has sockets for one host, all of them waiting.
    const asked = [];
    client.onPermission((request) => void asked.push(request));
    const permission = { toolCall: { toolCallId: "c" }, options: [{ optionId: "yes", name: "Yes", kind: "allow_once" }] };
    const sessions = await Promise.all(Array.from({ length: 12 }, () => client.sessions.create({ cwd })));
    const turns = sessions.map((each) => each.prompt(JSON.stringify([["ask", "session/request_permission", permission], ["wait_answer"], ["say", "done"]])));
    while (asked.length < 12) await new Promise((resolve) => setTimeout(resolve, 5));
    found.health = (await client.health()).status;
    await Promise.all(asked.map((request) => client.replyPermission(request.id, "yes")));
    found.turns = await Promise.all(turns.map((turn) => turn.text()));

    const order = [1, 2, 3].map((number) => session.prompt(String(number)));
    found.order = (await Promise.all(order)).map(({ turnId }) => Number(turnId.split("-")[1]));
    const failure = await session.prompt(JSON.stringify([["exit", 3]])).then(() => undefined, (error) => error);
    found.failure = failure instanceof RequestError && failure.data.type;

    await session.files.write("from-a-browser.txt", new Blob(["blob"]).stream());
    found.file = await session.files.readText("from-a-browser.txt");
    found.started = await SandboxAgent.start().catch((error) => error.message);
    await client.close();
  } catch (error) {
    found.error = String(error.stack ?? error);
  }
  await fetch("/done", { method: "POST", body: JSON.stringify(found) });
`;

test("the SDK works in a browser", { timeout: 60_000, skip: CHROMIUM ? false : "there is no chromium on this machine" }, async () => {
  const done = new Arrival<Record<string, unknown>>();
  let settings = {};
  const pages = createServer((request, response) => void serve(request, response, () => settings, done));
  await new Promise<void>((resolve) => pages.listen(0, "127.0.0.1", resolve));
  const origin = `http://127.0.0.1:${(pages.address() as AddressInfo).port}`;
  const server = await TestServer.start(["--cors-origin", origin]);
  settings = { url: server.url, token: TOKEN, cwd: server.work };
  const profile = mkdtempSync(join(tmpdir(), "chromium-"));
  const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", `--user-data-dir=${profile}`, "--remote-debugging-port=0"];
  const browser = spawn(CHROMIUM!, [...flags, origin], { stdio: "ignore", detached: true });
  try {
    const found = await within(done.promise, "the page", 45_000);

    assert.equal(found["error"], undefined);
    assert.match(String(found["text"]), /Grüße$/);
    assert.deepEqual(found["preferred"], ["respond-async"]);
    assert.deepEqual(found["turns"], Array.from({ length: 12 }, () => "done"));
    assert.equal(found["health"], "ok");
    const order = found["order"] as number[];
    assert.deepEqual(order, order.toSorted((a, b) => a - b));
    assert.equal(found["failure"], "agent-exited");
    assert.equal(found["file"], "blob");
    assert.match(String(found["started"]), /start\(\) needs Node/);
  } finally {
    process.kill(-browser.pid!, "SIGKILL");
    pages.closeAllConnections();
    pages.close();
    await server.close();
    rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
  }
});

async function serve(request: IncomingMessage, response: ServerResponse, settings: () => object, done: Arrival<Record<string, unknown>>): Promise<void> {
  if (request.method === "POST") {
    const pieces: Buffer[] = [];
    for await (const piece of request) pieces.push(piece as Buffer);
    response.end();
    done.arrive(JSON.parse(Buffer.concat(pieces).toString()) as Record<string, unknown>);
  } else if (request.url === "/") {
    const map = `<script type="importmap">${JSON.stringify({ imports: IMPORTS })}</script>`;
    const script = `<script type="module">${PAGE.replace("SETTINGS", JSON.stringify(settings()))}</script>`;
    response.writeHead(200, { "content-type": "text/html; charset=utf-8" }).end(`<!doctype html>${map}${script}`);
  } else {
    const path = join(ROOT, normalize(request.url ?? ""));
    if (!path.startsWith(ROOT) || extname(path) !== ".js") response.writeHead(404).end();
    else response.writeHead(200, { "content-type": "text/javascript" }).end(readFileSync(path));
  }
}

function isProgram(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}
