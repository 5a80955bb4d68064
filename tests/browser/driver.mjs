/**
 * Drives a browser for tests in Python: calls of Playwright come on stdin, what they give goes to stdout, a JSON line each.
 *
 * In:  {"id": 3, "on": "o1", "call": "goto", "with": ["http://…"]}     `on` is an object of before; the browser is "o0"
 * Out: {"id": 3, "gives": …}, {"id": 3, "object": "o2"} for what is no JSON, or {"id": 3, "fails": "…"}
 *
 * An argument {"function": "…"} is a function by its source, {"object": "o2"} an object of before. The first line out is {"ready": version} or
 * {"unavailable": reason}. `problems` of a page gives what went wrong in it unnoticed since the last time, `complaints` the errors in its console:
 * those of its code, and the browser's own, such as a request that failed. It ends with stdin.
 */

import { createInterface } from "node:readline";

import { launched } from "./chromium.mjs";

const objects = new Map();
const names = new Map();
const problems = new Map();
const complaints = new Map();

function say(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function nameOf(object) {
  if (!names.has(object)) {
    const name = `o${objects.size}`;
    names.set(object, name);
    objects.set(name, object);
  }
  return names.get(object);
}

/** Errors that no code caught, rejected promises among them. */
function listen(page) {
  problems.set(page, []);
  page.on("pageerror", (error) => problems.get(page).push(error.stack ?? String(error)));
  complaints.set(page, []);
  page.on("console", (message) => {
    if (message.type() === "error") complaints.get(page).push(`${message.text()} (${message.location().url})`);
  });
  page.on("crash", () => problems.get(page).push("the page crashed"));
}

function isJson(value) {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return true;
  return Object.getPrototypeOf(value) === Object.prototype;
}

async function play({ id, on, call, with: given = [] }) {
  try {
    const object = objects.get(on);
    if (call === "problems") return { id, gives: problems.get(object).splice(0) };
    if (call === "complaints") return { id, gives: complaints.get(object).splice(0) };
    const value = await object[call](...given.map(argument));
    if (call === "newContext") value.on("page", listen);
    // A picture: it is in the file that it was to be written to.
    if (Buffer.isBuffer(value)) return { id, gives: null };
    return isJson(value) ? { id, gives: value } : { id, object: nameOf(value) };
  } catch (error) {
    return { id, fails: String(error.message) };
  }
}

function argument(value) {
  // Called like this, `eval` sees nothing of this module.
  if (typeof value?.function === "string") return (0, eval)(`(${value.function})`);
  if (typeof value?.object === "string") return objects.get(value.object);
  return value;
}

let browser;
try {
  browser = await launched();
} catch (error) {
  say({ unavailable: error.message });
}
if (browser !== undefined) {
  nameOf(browser);
  say({ ready: browser.version() });
  for await (const line of createInterface(process.stdin)) void play(JSON.parse(line)).then(say);
  await browser.close();
}
