/**
 * Measures the Inspector in a real Chromium. The argument is JSON: `url` and `token` of a server, `chunks`, `lines`,
 * `envelopes`, `sessions`, `seconds`, `rounds` and `events` as sizes, and `peer`, the address of the peer's server, or null, with `patience`,
 * the seconds that its page gets. Prints one JSON object with what was found.
 */

import { launched } from "../../tests/browser/chromium.mjs";

const { url, token, chunks, lines, envelopes, sessions, seconds, rounds, events, peer, patience } = JSON.parse(process.argv[2]);
const TIMEOUT = 300_000;

/** A client of the server, as simple as can be. */
class Client {
  #id = 0;
  #connection;

  async call(method, params) {
    const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };
    if (this.#connection) headers["X-ACP-Connection-Id"] = this.#connection;
    const body = JSON.stringify({ jsonrpc: "2.0", id: (this.#id += 1), method, params });
    const response = await fetch(`${url}/v1/rpc`, { method: "POST", headers, body });
    const answer = await response.json();
    if (answer.result === undefined) throw new Error(`${method}: ${JSON.stringify(answer)}`);
    this.#connection ??= response.headers.get("X-ACP-Connection-Id");
    return answer.result;
  }

  async open() {
    await this.call("initialize", { protocolVersion: 1, _meta: { "sandboxagent.dev": { agent: "mock" } } });
    return this;
  }

  async session(agent = "mock") {
    const _meta = { "sandboxagent.dev": { agent } };
    return (await this.call("session/new", { cwd: "/tmp", mcpServers: [], _meta })).sessionId;
  }

  prompt(sessionId, text) {
    return this.call("session/prompt", { sessionId, prompt: [{ type: "text", text }] });
  }
}

/** Writes down how long frames take, and tasks that hold up the page. */
const RECORDER = () => {
  window.recorder = { frames: [], tasks: [], since: 0 };
  let last = performance.now();
  const frame = (now) => {
    window.recorder.frames.push(now - last);
    last = now;
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
  new PerformanceObserver((list) => {
    for (const { duration, startTime } of list.getEntries()) window.recorder.tasks.push([startTime, duration]);
  }).observe({ type: "longtask", buffered: true });
};

/** The longest task of the page's own thread, in milliseconds of CPU: what else the machine does is not in it. */
function longestOf(trace) {
  const { traceEvents } = JSON.parse(trace.toString());
  const threads = traceEvents.filter(({ name, args }) => name === "thread_name" && args.name === "CrRendererMain");
  const isPage = new Set(threads.map(({ pid, tid }) => `${pid} ${tid}`));
  const tasks = traceEvents.filter(({ name, pid, tid, tdur }) => /RunTask$/.test(name) && tdur && isPage.has(`${pid} ${tid}`));
  return tasks.reduce((most, { tdur }) => Math.max(most, tdur / 1000), 0);
}

async function recorded(page, work) {
  await page.context().browser().startTracing(page, { categories: ["toplevel", "disabled-by-default-devtools.timeline"] });
  const found = await framesOf(page, work);
  return { ...found, longestCpu: longestOf(await page.context().browser().stopTracing()) };
}

async function framesOf(page, work) {
  await page.evaluate(() => {
    window.recorder.frames.length = 0;
    window.recorder.since = performance.now();
  });
  await work();
  return page.evaluate(() => {
    const { frames, tasks, since } = window.recorder;
    const sorted = [...frames].sort((one, other) => one - other);
    return {
      frames: frames.length,
      p99: sorted[Math.floor(sorted.length * 0.99)] ?? 0,
      longest: sorted.at(-1) ?? 0,
      longestTask: Math.max(0, ...tasks.filter(([at]) => at >= since).map(([, duration]) => duration)),
    };
  });
}

async function opened(browser, address) {
  const page = await browser.newPage({ viewport: { width: 1440, height: 900 } });
  page.setDefaultTimeout(TIMEOUT);
  await page.addInitScript(RECORDER);
  await page.goto(address);
  return page;
}

const within = (path) => `${url}/ui/${path}#token=${token}`;

/** What is loaded before anything can be done, and how long that takes. */
async function firstLoad(browser, address, isThere) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 } });
  const page = await context.newPage();
  const cdp = await context.newCDPSession(page);
  await cdp.send("Network.enable");
  const kinds = new Map();
  const code = { bytes: 0 };
  cdp.on("Network.responseReceived", ({ requestId, type }) => kinds.set(requestId, type));
  cdp.on("Network.loadingFinished", ({ requestId, encodedDataLength }) => {
    if (["Document", "Script", "Stylesheet"].includes(kinds.get(requestId))) code.bytes += encodedDataLength;
  });
  await page.goto(address, { waitUntil: "commit" });
  await page.waitForFunction(isThere, undefined, { polling: "raf", timeout: TIMEOUT });
  const interactive = await page.evaluate(() => performance.now());
  await page.waitForLoadState("networkidle").catch(() => undefined);
  await context.close();
  return { bytes: code.bytes, interactive };
}

async function manyChunks(browser, client) {
  const page = await opened(browser, within(`sessions/${encodeURIComponent(await client.session("writer"))}`));
  const field = page.locator(".composer-field");
  await field.fill(`write ${chunks}`);
  await page.waitForFunction(() => document.body.innerText.includes("Connected"));
  const shown = page.evaluate(
    (last) =>
      new Promise((resolve) => {
        let began = 0;
        addEventListener("keydown", () => (began = performance.now()), { once: true, capture: true });
        const look = () => {
          if (began && document.querySelector(".transcript")?.textContent.includes(last)) resolve(performance.now() - began);
          else requestAnimationFrame(look);
        };
        look();
      }),
    "the-last-word",
  );
  const frames = await recorded(page, async () => {
    await field.press("Enter");
    await shown;
  });
  const milliseconds = await shown;
  await page.close();
  return { milliseconds, ...frames };
}

/** The same at the peer's page: its agent `pi` is the same writer. Its page may not come to the end: then how far it came. */
async function peersChunks(browser) {
  const page = await opened(browser, `${peer}/ui/`);
  await page.click("text=Create Session");
  await page.click(".sidebar-add-option:has-text('Pi')");
  await page.locator(".button.primary", { hasText: "Create Session" }).last().click();
  const field = page.locator("textarea");
  await field.fill(`write ${chunks}`);
  const isShown = () => document.body.textContent.includes("the-last-word");
  let [done, milliseconds] = [false, 0];
  // Without a trace, which would be larger than all else here after a minute or two.
  const frames = await framesOf(page, async () => {
    const began = performance.now();
    await field.press("Enter");
    const end = page.waitForFunction(isShown, undefined, { polling: 100, timeout: patience * 1000 });
    done = await end.then(() => true, () => false);
    milliseconds = performance.now() - began;
  });
  const shown = await page.evaluate(() => Number(/([\d,]+) events/.exec(document.body.innerText)?.[1].replaceAll(",", "") ?? 0));
  await page.close();
  return { done, milliseconds, events: shown, ...frames };
}

/** A change of many lines: until it is shown, and while it scrolls. */
async function longDifference(browser, client) {
  const session = await client.session("writer");
  await client.prompt(session, `rewrite ${lines}`);
  const page = await opened(browser, within(`sessions/${encodeURIComponent(session)}?tab=envelopes`));
  await page.waitForSelector("[role=option]");
  let milliseconds = 0;
  const shown = await recorded(page, async () => {
    const began = performance.now();
    await page.click("a:has-text('Changes')");
    await page.waitForSelector(".diff-row");
    milliseconds = performance.now() - began;
  });
  const scrolled = await recorded(page, () =>
    page.evaluate(
      () =>
        new Promise((resolve) => {
          const body = document.querySelector(".diff-body");
          let frames = 0;
          const scroll = () => {
            body.scrollTop = frames % 50 === 0 ? Math.random() * body.scrollHeight : body.scrollTop + 1_500;
            frames += 1;
            if (frames < 200) requestAnimationFrame(scroll);
            else resolve();
          };
          requestAnimationFrame(scroll);
        }),
    ),
  );
  await page.close();
  return { milliseconds, shown, scrolled };
}

async function manyEnvelopes(browser, client) {
  const session = await client.session();
  await client.prompt(session, `big ${envelopes} 60`);
  const began = performance.now();
  const page = await opened(browser, within(`sessions/${encodeURIComponent(session)}?tab=envelopes`));
  await page.waitForFunction(
    (count) => Number(document.querySelector("[role=option]")?.ariaSetSize ?? 0) >= count,
    envelopes,
    { polling: 100 },
  );
  const loaded = performance.now() - began;
  const scrolled = await recorded(page, () =>
    page.evaluate(
      () =>
        new Promise((resolve) => {
          const list = document.querySelector("[role=listbox]");
          list.scrollTop = 0;
          let frames = 0;
          const scroll = () => {
            // By a few screens with every frame, now and then by a jump.
            list.scrollTop = frames % 50 === 0 ? Math.random() * list.scrollHeight : list.scrollTop + 1_500;
            frames += 1;
            if (frames < 400) requestAnimationFrame(scroll);
            else resolve();
          };
          requestAnimationFrame(scroll);
        }),
    ),
  );
  const searched = await recorded(page, async () => {
    await page.fill("[placeholder='Search envelopes']", "agent_message_chunk 777");
    await page.fill("[placeholder='Search envelopes']", `${envelopes - 1} x`);
    await page.waitForFunction(() => document.querySelectorAll("[role=option]").length === 1);
  });
  await page.close();
  return { loaded, scrolled, searched };
}

async function manySessions(browser, client) {
  const made = [];
  for (let count = 0; count < sessions; count += 1) made.push(await client.session());
  const turns = Promise.allSettled(made.map((each) => client.prompt(each, `slow ${seconds + 30}`)));
  const page = await opened(browser, within(""));
  await page.waitForFunction((count) => document.body.innerText.includes(`Running ${count}`), sessions, { polling: 250 });
  // The first drawing is a matter of loading.
  await page.waitForTimeout(1_000);
  const frames = await recorded(page, () => page.waitForTimeout(seconds * 1000));
  for (const sessionId of made) await client.call("_sandboxagent/session/terminate", { sessionId });
  await turns;
  await page.close();
  return frames;
}

/** How much memory the page has after each of many long turns. */
async function memory(browser, client) {
  const session = await client.session();
  const page = await opened(browser, within(`sessions/${encodeURIComponent(session)}`));
  const cdp = await page.context().newCDPSession(page);
  const heaps = [];
  for (let round = 0; round < rounds; round += 1) {
    await client.prompt(session, `big ${events} 60`);
    await page.waitForFunction(
      (count) => Number(document.querySelector("[role=slider]")?.ariaValueMax ?? 0) >= count,
      (round + 1) * events,
    );
    await page.waitForTimeout(1_000);
    await cdp.send("HeapProfiler.collectGarbage");
    heaps.push((await cdp.send("Runtime.getHeapUsage")).usedSize);
  }
  await page.close();
  return { heaps, events };
}

const browser = await launched();
try {
  const client = await new Client().open();
  const found = {};
  found.load = await firstLoad(browser, within(""), () => document.body?.innerText.includes("Mission control"));
  if (peer) {
    const load = await firstLoad(browser, `${peer}/ui/`, () => document.querySelector("button") !== null);
    found.peer = { load, chunks: await peersChunks(browser) };
  }
  found.chunks = await manyChunks(browser, client);
  found.difference = await longDifference(browser, client);
  found.envelopes = await manyEnvelopes(browser, client);
  found.memory = await memory(browser, client);
  found.sessions = await manySessions(browser, client);
  console.log(JSON.stringify(found));
} finally {
  await browser.close();
}
