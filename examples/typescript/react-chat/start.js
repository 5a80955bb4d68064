/**
 * Builds the page, starts a private server that lets the page call it, and prints the page's address.
 *
 * usage: npm --prefix examples/typescript/react-chat start
 */

import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { SandboxAgent } from "sandboxagent";
import { build, preview } from "vite";

const root = import.meta.dirname;
await build({ root, logLevel: "warn" });
const page = await preview({ root, preview: { host: "127.0.0.1", port: Number(process.env.PORT ?? 4173) } });
const origin = new URL(page.resolvedUrls.local[0]).origin;
const client = await SandboxAgent.start({ options: { corsOrigin: origin } });
// Behind the #, so that the token is in no log of a server.
const cwd = mkdtempSync(join(tmpdir(), "react-chat-"));
const place = new URLSearchParams({ url: client.url, token: client.token, cwd });
console.log(`Open ${origin}/#${place}`);
