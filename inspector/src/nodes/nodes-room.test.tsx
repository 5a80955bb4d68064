// @vitest-environment jsdom
import { cleanup, render } from "@testing-library/react";
import type { FleetNode } from "sandboxagent";
import { afterEach, describe, expect, it } from "vitest";

import { NodeTable } from "./nodes-room.js";

afterEach(cleanup);

const node = (name: string, facts: Partial<FleetNode> = {}): FleetNode => ({
  node: name,
  version: "0.1.0",
  labels: {},
  agents: ["mock"],
  running: 0,
  sessions: 0,
  since: "2026-11-16T09:00:00.000Z",
  draining: false,
  pinned: false,
  ...facts,
});

describe("the table of nodes", () => {
  it("says which nodes a gateway does not hear or take all of, and why", () => {
    const { getByRole } = render(
      <NodeTable
        nodes={[
          node("well"),
          node("floods", { setAside: "more than 100 lines that are none" }),
          node("many", { limited: "3 sessions were not taken\u202e" }),
          node("leaves", { draining: true }),
        ]}
      />,
    );
    const rowOf = (name: string): string => getByRole("row", { name: new RegExp(name) }).textContent ?? "";
    expect(rowOf("floods")).toContain("Set asidemore than 100 lines that are none");
    expect(rowOf("many")).toContain("Limited3 sessions were not taken‹U+202E›");
    expect(rowOf("leaves")).toContain("Draining");
    expect(rowOf("well")).not.toMatch(/Set aside|Limited|Draining/);
  });
});
