/**
 * Writes dist/browser.js, the build that bundlers take for browsers: one module, without Node and without zod.
 *
 *     node scripts/browser.mjs
 *
 * Upstream checks params by zod's schemas before it hands them to handlers that were registered by its own names. The
 * SDK registers none of these, so no schema is ever used; one that is used throws.
 */

import { readFileSync, renameSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));
const FILE = `${ROOT}/dist/browser.js`;
const upstream = JSON.parse(readFileSync(`${ROOT}/node_modules/@agentclientprotocol/sdk/package.json`, "utf8"));

const withoutSchemas = {
  name: "without schemas",
  setup({ onLoad }) {
    onLoad({ filter: /[/\\]schema[/\\](zod|guards)\.gen\.js$/ }, ({ path }) => {
      const names = [...readFileSync(path, "utf8").matchAll(/^export const (\w+)/gm)].map(([, name]) => name);
      const schema = `const schema = { parse() { throw new TypeError("this build has no schemas"); } };`;
      return { contents: [schema, ...names.map((name) => `export const ${name} = schema;`)].join("\n") };
    });
  },
};

const withoutNode = {
  name: "without Node",
  setup({ onResolve }) {
    onResolve({ filter: /^\.\/embedded\.js$/ }, () => ({ path: `${ROOT}/dist/embedded-browser.js` }));
  },
};

const { outputFiles } = await build({
  absWorkingDir: ROOT,
  entryPoints: ["dist/index.js"],
  bundle: true,
  format: "esm",
  platform: "browser",
  target: "es2022",
  plugins: [withoutSchemas, withoutNode],
  banner: { js: `/*! Contains @agentclientprotocol/sdk ${upstream.version}, ${upstream.license} */` },
  logLevel: "warning",
  write: false,
});
// At once: others may read it meanwhile.
writeFileSync(`${FILE}.${process.pid}`, outputFiles[0].text);
renameSync(`${FILE}.${process.pid}`, FILE);
