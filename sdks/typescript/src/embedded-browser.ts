/** Takes the place of `embedded.ts` in the build for browsers, where no program can be started. */

import { InvalidCall } from "./errors.js";

/** What `start()` says in a browser. */
export const NEEDS_NODE = "start() needs Node: in a browser, connect() to a server that runs elsewhere";

/** Always rejects. */
export async function startServer(): Promise<never> {
  throw new InvalidCall(NEEDS_NODE);
}
