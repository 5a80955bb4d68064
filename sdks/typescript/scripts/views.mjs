/**
 * Writes the expected views of the logs in tests/client/views, which the tests of both SDKs read. Look at what changes.
 *
 *     node scripts/views.mjs
 */

import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

import { reduce } from "../dist/index.js";

const VIEWS = fileURLToPath(new URL("../../../tests/client/views/", import.meta.url));

for (const name of readdirSync(VIEWS).filter((each) => each.endsWith(".jsonl"))) {
  const lines = readFileSync(VIEWS + name, "utf8").trimEnd().split("\n");
  const view = reduce(lines.map((line) => JSON.parse(line)));
  writeFileSync(VIEWS + name.replace(/jsonl$/, "view.json"), `${JSON.stringify(view, null, 1)}\n`);
}
