/** What tests find on the page: the SDK, and a few things that each of them needs. */

import * as sdk from "sandboxagent";

/** Everything that comes, until it ends. */
async function all(items) {
  const found = [];
  for await (const item of items) found.push(item);
  return found;
}

/** Every event of a session's log. */
async function logOf(session) {
  return await all(session.log({ before: Number.MAX_SAFE_INTEGER }));
}

/** How something failed, in a form that leaves the page. */
async function failure(doing) {
  try {
    await doing;
  } catch (error) {
    const { name, message, code, slug, status, data, outcomeUnknown } = error;
    return { name, message, code, slug, status, data, outcomeUnknown };
  }
  return null;
}

/** A promise, and who keeps it. */
function arrival() {
  let arrive;
  const promise = new Promise((resolve) => {
    arrive = resolve;
  });
  return Object.assign(promise, { arrive });
}

/** What the SDK reported. */
const reports = [];
const logger = {
  warn: (...words) => reports.push(words.map(String).join(" ")),
  error: (...words) => reports.push(words.map(String).join(" ")),
};

Object.assign(window, { sdk, all, logOf, failure, arrival, reports, logger, program: (...steps) => JSON.stringify(steps) });
