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

  describe("by a patch beside the change", () => {
    const olds = Array.from({ length: 40 }, (_, index) => `line ${index + 1}\n`);
    const news = olds.with(19, "twenty\n");
    const HUNK = "@@ -16,9 +16,9 @@\n line 16\n line 17\n line 18\n line 19\n-line 20\n+twenty\n line 21\n line 22\n line 23\n line 24\n";
    const patch = (name: string, hunks = HUNK): string => `Index: ${name}\n${"=".repeat(67)}\n--- ${name}\n+++ ${name}\n${hunks}`;

    it("are those of a part, as OpenCode has it", () => {
      const raw = [{ filePath: "/w/a.txt" }, { output: "Edited.", metadata: { diff: patch("/w/a.txt") } }];
      expect(startsOf([diff("/w/a.txt", "line 20\n", "twenty\n")], [{ path: "/w/a.txt" }], raw)).toEqual([{ old: 20, new: 20 }]);
    });

    it("are those of a whole file, as OpenCode has it when it asks, and Qwen Code at the end", () => {
      const whole = [diff("/w/a.txt", olds.join(""), news.join(""))];
      expect(startsOf(whole, [], [{ filepath: "/w/a.txt", diff: patch("/w/a.txt") }])).toEqual([WHOLE_FILE]);
      expect(startsOf(whole, [], [{}, { fileDiff: patch("a.txt") }])).toEqual([WHOLE_FILE]);
    });

    it("count what earlier hunks have moved, and lines that only come", () => {
      const hunks = "@@ -1,1 +1,3 @@\n+new\n+new\n line 1\n@@ -30,2 +32,2 @@\n line 30\n-line 31\n+thirty-one\n";
      const raw = [{ diff: patch("a.txt", hunks) }];
      expect(startsOf([diff("/w/a.txt", "line 30\nline 31\n", "line 30\nthirty-one\n")], [], raw)).toEqual([{ old: 30, new: 32 }]);
      expect(startsOf([diff("/w/a.txt", "line 1\n", "new\nnew\nline 1\n")], [], raw)).toEqual([{ old: 1, new: 1 }]);
    });

    it("are not guessed when the patch is of another file, has another change, or has it twice, or is none", () => {
      const part = [diff("/w/a.txt", "line 20\n", "twenty\n")];
      const twice = "@@ -3,1 +3,1 @@\n-line 20\n+twenty\n@@ -20,1 +20,1 @@\n-line 20\n+twenty\n";
      for (const raw of [
        { diff: patch("/w/b.txt") },
        { diff: patch("/w/a.txt", "@@ -1,1 +1,1 @@\n-line 1\n+one\n") },
        { diff: patch("/w/a.txt", twice) },
        { diff: "@@ -1,1 +1" },
        { diff: 1, patch: null },
        "text",
        null,
      ]) {
        expect(startsOf(part, [], [raw])).toEqual([undefined]);
      }
    });
  });
});
