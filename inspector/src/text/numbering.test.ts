import type { ToolCallContent } from "@agentclientprotocol/sdk";
import { describe, expect, it } from "vitest";

import { WHOLE_FILE, startsOf } from "./numbering.js";

const diff = (path: string, oldText: string | null, newText: string, kind?: string): ToolCallContent => ({
  type: "diff",
  path,
  oldText,
  newText,
  ...(kind !== undefined && { _meta: { kind } }),
});

describe("the file's own line numbers", () => {
  it("are known of a new file, and of a whole one", () => {
    const content = [diff("/a", null, "x\n"), diff("/b", "x\n", "y\n", "modify"), diff("/c", "x\n", "", "delete")];
    expect(startsOf(content, [{ path: "/a" }, { path: "/b" }])).toEqual([WHOLE_FILE, WHOLE_FILE, WHOLE_FILE]);
  });

  it("are not known of a part whose line nothing says", () => {
    const content = [diff("/a", "x\n", "y\n"), diff("/b", "x\n", "y\n", "update")];
    expect(startsOf(content, [{ path: "/a" }, { path: "/elsewhere", line: 3 }])).toEqual([undefined, undefined]);
    expect(startsOf(content, [{ path: "/a", line: 0 }, { path: "/b", line: null }])).toEqual([undefined, undefined]);
  });

  it("are those of each part, which earlier parts have moved", () => {
    const content = [
      diff("/a", "one\ntwo", "one\nand a half\ntwo"),
      { type: "content", content: { type: "text", text: "and" } } satisfies ToolCallContent,
      diff("/a", "nine\nten\n", "ten\n"),
      diff("/b", "x\n", "y\n"),
    ];
    const locations = [{ path: "/a", line: 11 }, { path: "/a", line: 42 }, { path: "/b", line: 7 }];
    expect(startsOf(content, locations)).toEqual([
      { old: 11, new: 11 },
      undefined,
      { old: 41, new: 42 },
      { old: 7, new: 7 },
    ]);
  });

  it("are not guessed when there are fewer lines than parts, or more", () => {
    const parts = [diff("/a", "x\n", "y\n"), diff("/a", "v\n", "w\n")];
    expect(startsOf(parts, [{ path: "/a", line: 3 }])).toEqual([undefined, undefined]);
    expect(startsOf(parts.slice(0, 1), [{ path: "/a", line: 3 }, { path: "/a", line: 9 }])).toEqual([undefined]);
  });
});
