/** The SDK has no protocol implementation of its own: JSON-RPC and ACP are upstream's, and only the Stream is ours. */

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { before, describe, test } from "node:test";

import ts from "typescript";

import { type Finding, findings } from "./support/analysis.js";
import { TestServer } from "./support/server.js";

const ROOT = fileURLToPath(new URL("../", import.meta.url));
const BOUNDED = { timeout: 180_000 };

/** What may be where. If you add a line here, say why. */
const ALLOWED: Record<Finding["rule"], string[]> = {
  "makes an envelope": ["stream.ts"],
  // Besides the stream: what the log tells of the past, and what is listed as open. Both are data that was fetched.
  "reads an envelope": ["past.ts", "stream.ts"],
  // What the outbox sends by socket is what the link would send by POST.
  "uses the wire": ["link.ts", "outbox.ts", "stream.ts"],
  // The one place that makes an app of upstream's and connects it.
  "uses upstream's insides": ["connection.ts"],
  // The stream must know which answers are still wanted; asking, which of the agents' requests a handler has deferred;
  // the transcript, which request of a log an answer in it belongs to.
  "keeps ids": ["asking.ts", "stream.ts", "transcript.ts"],
  "copies a type of ACP": [],
};

/** What a protocol implementation would look like. */
const PLANTED: Record<string, [Finding["rule"], string]> = {
  "an envelope that is made": [
    "makes an envelope",
    "export const sent = (id: number): string => JSON.stringify({ jsonrpc: '2.0', id, method: 'x' });",
  ],
  "an envelope in a text": [
    "makes an envelope",
    'export const sent = (id: number): string => `{"jsonrpc": "2.0", "id": ${id}}`;',
  ],
  "an envelope that is looked into": [
    "reads an envelope",
    "import type { Envelope } from './stream.js';\nexport const isAnswer = (what: Envelope): boolean => !('method' in what);",
  ],
  "a member of an envelope": [
    "reads an envelope",
    "import type { AnyRequest } from '@agentclientprotocol/sdk';\nexport const idOf = (what: AnyRequest): unknown => what.id;",
  ],
  "a way to the wire": [
    "uses the wire",
    "export const send = (url: string): Promise<Response> => fetch(`${url}/v1/rpc`, { method: 'POST' });",
  ],
  "a link of its own": ["uses the wire", "import { Link } from './link.js';\nexport const made: unknown = Link;"],
  "requests that wait by their ids": [
    "keeps ids",
    "export class Calls {\n  readonly waiting: Map<string | number, () => void> = new Map<string | number, () => void>();\n}",
  ],
  "a second app": [
    "uses upstream's insides",
    "import { agent } from '@agentclientprotocol/sdk';\nexport const made: unknown = agent();",
  ],
  "a schema": ["uses upstream's insides", "import * as z from 'zod';\nexport const schema: unknown = z.string();"],
  "a type of ACP by another name": [
    "copies a type of ACP",
    "export interface Choice { optionId: string; name: string; kind: 'allow_once' | 'allow_always' | 'reject_once' | 'reject_always'; _meta?: { [key: string]: unknown } | null }",
  ],
};

const isPlanted = ({ file }: Finding): boolean => file.startsWith("planted-");

/** Everything that is found, in our sources and in what is planted among them. */
function look(): Finding[] {
  const { config } = ts.readConfigFile(`${ROOT}tsconfig.json`, (path) => ts.sys.readFile(path));
  const { options, fileNames } = ts.parseJsonConfigFileContent(config, ts.sys, ROOT);
  const host = ts.createCompilerHost(options);
  const { getSourceFile, fileExists, readFile } = host;
  const planted = Object.fromEntries(
    Object.values(PLANTED).map(([, text], index) => [`${ROOT}src/planted-${index}.ts`, text]),
  );
  host.fileExists = (path) => path in planted || fileExists(path);
  host.readFile = (path) => planted[path] ?? readFile(path);
  host.getSourceFile = (path, ...rest) => {
    const text = planted[path];
    return text === undefined
      ? getSourceFile(path, ...rest)
      : ts.createSourceFile(path, text, ts.ScriptTarget.ES2022, true);
  };
  const program = ts.createProgram([...fileNames, ...Object.keys(planted)], { ...options, noEmit: true }, host);
  return findings(
    program,
    program.getSourceFiles().filter(({ fileName }) => fileName.startsWith(`${ROOT}src/`)),
  );
}

let all: Finding[];

before(() => {
  all = look();
});

describe("the sources", () => {
  for (const [rule, allowed] of Object.entries(ALLOWED)) {
    test(`no module ${rule}${allowed.length > 0 ? ` but ${allowed.join(" and ")}` : ""}`, BOUNDED, () => {
      const found = all.filter((each) => each.rule === rule && !isPlanted(each));

      assert.deepEqual([...new Set(found.map(({ file }) => file))].sort(), allowed, JSON.stringify(found, null, 1));
    });
  }

  test("upstream is given no more than the app, the version and our stream", BOUNDED, () => {
    const values = all
      .filter((each) => each.rule === "uses upstream's insides" && !isPlanted(each))
      .map(({ text }) => text);

    assert.deepEqual(values.sort(), ["PROTOCOL_VERSION", "client"]);
    const connection = readFileSync(`${ROOT}src/connection.ts`, "utf8");
    assert.equal(connection.match(/\bclient\(/g)?.length, 1);
    assert.match(connection, /app\.connect\(stream\)/);
    const names = readdirSync(`${ROOT}src`, { encoding: "utf8", recursive: true });
    for (const name of names.filter((each) => each.endsWith(".ts") && each !== "stream.ts")) {
      assert.doesNotMatch(readFileSync(`${ROOT}src/${name}`, "utf8"), /stream\.(readable|writable)/, name);
    }
  });

  test("the package depends on upstream, and on what upstream wants beside it", BOUNDED, () => {
    const { dependencies } = JSON.parse(readFileSync(`${ROOT}package.json`, "utf8")) as { dependencies: object };

    assert.deepEqual(Object.keys(dependencies).sort(), ["@agentclientprotocol/sdk", "zod"]);
  });
});

describe("a search would find", () => {
  for (const [index, [name, [rule]]] of Object.entries(PLANTED).entries()) {
    test(name, BOUNDED, () => {
      const found = all.filter(({ file }) => file === `planted-${index}.ts`);

      assert.deepEqual([...new Set(found.map((each) => each.rule))], [rule], JSON.stringify(found));
    });
  }
});

test("the ids of all that is sent are those that upstream counts", BOUNDED, async () => {
  const server = await TestServer.start();
  const client = await server.connect();
  const ids: unknown[] = [];
  client.tap((direction, envelope) => {
    if (direction === "sent" && "method" in envelope && "id" in envelope) ids.push(envelope.id);
  });

  const session = await client.sessions.create({ cwd: server.work });
  await Promise.all([session.prompt("a"), session.models(), session.setMetadata({ a: 1 }), client.pending()]);
  for await (const event of session.history()) assert.ok(event.position > 0);
  await (await client.sessions.attach(session.id)).fork();

  assert.deepEqual(ids, [...ids.keys()]);
  assert.ok(ids.length > 8);
  await client.close();
  await server.close();
});
