import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";

import { afterEach, describe, expect, it } from "vitest";

import { reduce } from "sandboxagent";
import { Script } from "../../../sdks/typescript/tests/support/script.js";
import { patchOf } from "./patch.js";
import { deciderOf, reviewOf } from "./review.js";

const CWD = "/srv/app";

describe("a review", () => {
  it("has every change with its turn, what was asked, and who allowed it", () => {
    const script = new Script().made();
    script.turn("Rename it", () => {
      script.tool("call-1", { content: [{ type: "diff", path: "/srv/app/a", oldText: "1\n", newText: "2\n" }] });
      const asked = script.permission("call-1");
      script.answer(asked, "yes");
      script.decision(asked, "yes");
      script.toolUpdate("call-1", { status: "completed" });
    });
    script.turn("Talk only");
    script.turn("And that", () => script.edit("call-2", "/srv/app/b", null, "new\n"));
    const { changes, files, turns } = reviewOf(reduce(script.entries));
    expect(changes).toMatchObject([
      { path: "/srv/app/a", prompt: "Rename it", turnNumber: 1, state: "done", requestKey: expect.any(String), decision: { by: { user: "ada" } } },
      { path: "/srv/app/b", prompt: "And that", turnNumber: 3, state: "done", requestKey: undefined, before: undefined },
    ]);
    expect(files.map(({ path }) => path)).toEqual(["/srv/app/a", "/srv/app/b"]);
    expect(turns.map(({ number }) => number)).toEqual([1, 3]);
    expect(deciderOf(changes[0]!.decision!)).toBe("ada");
  });

  it("has the file's own line numbers where the agent or the server says them", () => {
    const script = new Script().made();
    script.turn("Edit it", () => {
      const content = [
        { type: "diff", path: "/srv/app/a", oldText: "1\n", newText: "2\n3\n" },
        { type: "diff", path: "/srv/app/a", oldText: "8\n", newText: "9\n" },
      ];
      script.tool("told", { content, locations: [{ path: "/srv/app/a", line: 20 }, { path: "/srv/app/a", line: 31 }] });
      script.edit("untold", "/srv/app/b", "1\n", "2\n");
      script.edit("new", "/srv/app/c", null, "1\n");
      script.event("fromAgent", { id: 9, method: "fs/write_text_file", params: { path: "/srv/app/d", content: "y\n" } });
      script.event("fromServer", { id: 9, result: null });
      script.edit("written", "/srv/app/d", "x\n", "y\n");
    });
    expect(reviewOf(reduce(script.entries)).changes.map(({ start }) => start)).toEqual([
      { old: 20, new: 20 },
      { old: 30, new: 31 },
      undefined,
      { old: 1, new: 1 },
      { old: 1, new: 1 },
    ]);
  });

  it("tells what was refused, what failed and what never came to its end", () => {
    const script = new Script().made();
    const content = [{ type: "diff", path: "/srv/app/a", oldText: "1", newText: "2" }];
    script.turn("Try", () => {
      script.tool("no", { content });
      const asked = script.permission("no");
      script.answer(asked, "no");
      script.decision(asked, "no", { kind: "rule", rule: 2, source: "server", name: "no writing" });
      script.toolUpdate("no", { status: "failed" });
      script.tool("bad", { content });
      script.toolUpdate("bad", { status: "failed" });
      script.tool("open", { content });
    });
    const { changes } = reviewOf(reduce(script.entries));
    expect(changes.map(({ state }) => state)).toEqual(["rejected", "failed", "unfinished"]);
    expect(deciderOf(changes[0]!.decision!)).toBe("rule no writing");
  });

  it("has what the server wrote for the agent, once, also when a tool call shows it too", () => {
    const script = new Script().made();
    script.turn("Write", () => {
      for (const [id, path] of [[7, "/srv/app/a"], [8, "/srv/app/b"]] as const) {
        script.event("fromAgent", { id, method: "fs/write_text_file", params: { path, content: "x\n" } });
        script.event("fromServer", { id, result: null });
      }
      script.edit("call-1", "/srv/app/a", null, "x\n");
    });
    const { changes } = reviewOf(reduce(script.entries));
    expect(changes.map(({ path }) => path).sort()).toEqual(["/srv/app/a", "/srv/app/b"]);
  });
});

describe("a patch", () => {
  const folders: string[] = [];
  afterEach(() => {
    for (const folder of folders.splice(0)) rmSync(folder, { recursive: true });
  });

  /** Applies the patch of edits to files with `git apply`; gives what is in them then. */
  function applied(before: Record<string, string>, edits: readonly [string, string | null, string][]): Record<string, string> {
    const folder = mkdtempSync(join(tmpdir(), "patch-"));
    folders.push(folder);
    for (const [path, text] of Object.entries(before)) {
      mkdirSync(dirname(join(folder, path)), { recursive: true });
      writeFileSync(join(folder, path), text);
    }
    const script = new Script().made();
    script.turn("Change them", () => {
      for (const [index, [path, oldText, newText]] of edits.entries()) script.edit(`call-${index}`, `${CWD}/${path}`, oldText, newText);
    });
    const patch = patchOf(reviewOf(reduce(script.entries)).files, CWD);
    execFileSync("git", ["apply", "--whitespace=nowarn", "-"], { cwd: folder, input: patch, stdio: ["pipe", "pipe", "pipe"] });
    const paths = new Set([...Object.keys(before), ...edits.map(([path]) => path)]);
    return Object.fromEntries([...paths].map((path) => [path, readFileSync(join(folder, path), "utf8")]));
  }

  const lines = (count: number): string => Array.from({ length: count }, (_, index) => `line ${index + 1}\n`).join("");

  it("of ten thousand lines that all differ is made, and git applies it", () => {
    const other = lines(10_000).replaceAll("line", "row");
    const scattered = lines(10_000).replace(/^line (\d*[05])$/gm, "row $1");
    expect(
      applied({ "a.txt": lines(10_000), "b.txt": lines(10_000) }, [
        ["a.txt", lines(10_000), other],
        ["b.txt", lines(10_000), scattered],
      ]),
    ).toEqual({ "a.txt": other, "b.txt": scattered });
  });

  it("knows of a last line without an end", () => {
    for (const [before, after] of [
      ["a\nb", "a\nc"],
      ["a\nb\n", "a\nb"],
      ["a\nb", "a\nb\n"],
      ["b", ""],
    ] as const) {
      expect(applied({ "a.txt": before }, [["a.txt", before, after]])).toEqual({ "a.txt": after });
    }
  });

  it("changes files, makes new ones, and empties some, as git applies it", () => {
    const before = { "a.txt": lines(40), "b/c.txt": "gone\n" };
    const after = lines(40).replace("line 3\n", "three\n").replace("line 39\n", "");
    expect(
      applied(before, [
        ["a.txt", lines(40), after],
        ["b/c.txt", "gone\n", ""],
        ["new/file.txt", null, "hello\nworld"],
      ]),
    ).toEqual({ "a.txt": after, "b/c.txt": "", "new/file.txt": "hello\nworld" });
  });

  it("has several changes of one file as one", () => {
    const second = lines(20).replace("line 5\n", "five\n");
    const third = second.replace("line 15\n", "fifteen\n").replace("five\n", "5\n");
    expect(applied({ "a.txt": lines(20) }, [["a.txt", lines(20), second], ["a.txt", second, third]])).toEqual({ "a.txt": third });
    expect(applied({}, [["n.txt", null, "one\n"], ["n.txt", "one\n", "one\ntwo\n"]])).toEqual({ "n.txt": "one\ntwo\n" });
  });

  it("is taken also when the agent shows only the lines around a change", () => {
    const part = (from: number, word: string): [string, string] => {
      const text = [from, from + 1, from + 2, from + 3, from + 4, from + 5, from + 6].map((n) => `line ${n}\n`).join("");
      return [text, text.replace(`line ${from + 3}\n`, `${word}\n`)];
    };
    const expected = lines(60).replace("line 23\n", "twenty-three\n").replace("line 53\n", "fifty-three\n");
    expect(applied({ "a.txt": lines(60) }, [["a.txt", ...part(20, "twenty-three")], ["a.txt", ...part(50, "fifty-three")]])).toEqual({
      "a.txt": expected,
    });
  });

  it("has hunks where the agent says that its parts are", () => {
    const script = new Script().made();
    const [before, after] = ["same\n".repeat(9), "same\n".repeat(4) + "other\n" + "same\n".repeat(4)];
    script.turn("Edit it", () => {
      const content = [{ type: "diff", path: `${CWD}/a`, oldText: before, newText: after }];
      script.tool("told", { content, locations: [{ path: `${CWD}/a`, line: 101 }], status: "completed" });
    });
    expect(patchOf(reviewOf(reduce(script.entries)).files, CWD)).toContain("@@ -102,7 +102,7 @@");
  });

  it("is taken for files without an end of line, and with names that need quotes", () => {
    expect(
      applied({ "a b.txt": "one\ntwo", "ü \"quoted\".txt": "x\n" }, [
        ["a b.txt", "one\ntwo", "one\n2"],
        ["ü \"quoted\".txt", "x\n", "y\n"],
        ["tab\there.txt", null, "new\n"],
      ]),
    ).toEqual({ "a b.txt": "one\n2", "ü \"quoted\".txt": "y\n", "tab\there.txt": "new\n" });
  });

  it("leaves out what was refused", () => {
    const script = new Script().made();
    script.turn("Try", () => {
      script.tool("no", { content: [{ type: "diff", path: `${CWD}/a`, oldText: "1", newText: "2" }] });
      const asked = script.permission("no");
      script.answer(asked, "no");
      script.decision(asked, "no");
    });
    expect(patchOf(reviewOf(reduce(script.entries)).files, CWD)).toBe("");
  });
});
