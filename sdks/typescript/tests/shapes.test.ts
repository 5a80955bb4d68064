/** What the server tells over HTTP has the shapes of its OpenAPI document: names, what may be absent, what null. */

import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { after, before, describe, test } from "node:test";

import ts from "typescript";

import { TestServer } from "./support/server.js";

const DIST = fileURLToPath(new URL("../dist/", import.meta.url));
const BOUNDED = { timeout: 180_000 };

/** Our names, and the server's. */
const SHAPES: Record<string, string> = {
  Agent: "AgentView",
  AgentHealth: "AgentHealth",
  Artifact: "Artifact",
  Credential: "Credential",
  Entry: "FileView",
  Features: "Features",
  Health: "HealthView",
  InstallInfo: "InstallFacts",
  InstallOptions: "InstallRequest",
  InstallResult: "InstallResult",
  Match: "Match",
  Progress: "Progress",
  ServerStatus: "ServerStatus",
  SessionInfo: "SessionView",
  Uploaded: "Uploaded",
  Written: "Written",
};

/** What only a gateway tells, whose document is another one. */
const AT_A_GATEWAY: Record<string, string[]> = { Health: ["gateway", "nodes"], SessionInfo: ["node"] };

interface Property {
  readonly anyOf?: { readonly type?: string }[];
  readonly enum?: string[];
}

interface Schema {
  readonly properties?: Record<string, Property>;
  readonly required?: string[];
}

describe("shapes", () => {
  let schemas: Record<string, Schema>;
  let declared: Map<string, ts.InterfaceDeclaration>;
  let server: TestServer;

  before(async () => {
    server = await TestServer.start();
    const document = (await (await fetch(`${server.url}/openapi.json`)).json()) as {
      components: { schemas: Record<string, Schema> };
    };
    schemas = document.components.schemas;
    declared = new Map();
    for (const name of readdirSync(DIST).filter((each) => each.endsWith(".d.ts"))) {
      const source = ts.createSourceFile(name, ts.sys.readFile(DIST + name) ?? "", ts.ScriptTarget.ES2022, true);
      for (const node of source.statements) if (ts.isInterfaceDeclaration(node)) declared.set(node.name.text, node);
    }
  });

  after(async () => {
    await server.close();
  });

  for (const [ours, theirs] of Object.entries(SHAPES)) {
    test(`${ours} is ${theirs}`, BOUNDED, (context) => {
      if (theirs === "HealthView" && "GatewayHealth" in schemas) {
        context.skip("a gateway has a health of its own");
        return;
      }
      const schema = schemas[theirs];
      const own = declared.get(ours);
      assert.ok(schema?.properties && own, `${ours} or ${theirs} is not there`);
      const { properties } = schema;
      const beside = AT_A_GATEWAY[ours] ?? [];
      const all = own.members.filter(ts.isPropertySignature);
      const members = all.filter((member) => !beside.includes(member.name.getText()));

      assert.ok(all.every((member) => members.includes(member) || member.questionToken !== undefined));
      assert.deepEqual(members.map((member) => member.name.getText()).sort(), Object.keys(properties).sort());
      for (const member of members) {
        const name = member.name.getText();
        const property: Property = properties[name]!;
        const type = member.type?.getText() ?? "";
        assert.equal(
          member.questionToken === undefined,
          schema.required?.includes(name) ?? false,
          `${name} may be absent`,
        );
        // What a caller gives may be left away instead.
        const nullable = property.anyOf?.some((each) => each.type === "null") ?? false;
        if (ours !== "InstallOptions") assert.equal(/\bnull\b/.test(type), nullable, `${name} may be null`);
        for (const word of property.enum ?? [])
          assert.ok(type.includes(JSON.stringify(word)), `${name} may be ${word}`);
      }
    });
  }
});
