// @vitest-environment node
import { describe, expect, it } from "vitest";

import { counterparts, countOf, folded, type Line, linesOf, paired, wordsOf } from "./changes.js";

const numbered = (count: number, change: (index: number) => string = (index) => `line ${index}`): string =>
  Array.from({ length: count }, (_, index) => `${change(index)}\n`).join("");

const after = (lines: readonly Line[]): string[] =>
  lines.filter(({ kind }) => kind !== "removed").map(({ text }) => text);
const before = (lines: readonly Line[]): string[] =>
  lines.filter(({ kind }) => kind !== "added").map(({ text }) => text);

describe("the difference of two texts", () => {
  it("gives back both texts, with the right numbers", () => {
    const lines = linesOf("a\nb\nc\nd\n", "a\nx\nc\nd\ne\n");
    expect(before(lines)).toEqual(["a", "b", "c", "d"]);
    expect(after(lines)).toEqual(["a", "x", "c", "d", "e"]);
    expect(lines.filter(({ old }) => old).map(({ old }) => old)).toEqual([1, 2, 3, 4]);
    expect(lines.filter((line) => line.new).map((line) => line.new)).toEqual([1, 2, 3, 4, 5]);
    expect(countOf(lines)).toEqual({ added: 2, removed: 1 });
  });

  it("knows a new file and an emptied one", () => {
    expect(countOf(linesOf(undefined, "a\nb"))).toEqual({ added: 2, removed: 0 });
    expect(countOf(linesOf("a\nb\n", ""))).toEqual({ added: 0, removed: 2 });
  });

  it("of ten thousand lines that all differ comes to an end", () => {
    const lines = linesOf(
      numbered(10_000),
      numbered(10_000, (index) => `other ${index}`),
    );
    expect(countOf(lines)).toEqual({ added: 10_000, removed: 10_000 });
    expect(after(lines)).toHaveLength(10_000);
  });

  it("finds thousands of changes in ten thousand lines, one by one", () => {
    const lines = linesOf(
      numbered(10_000),
      numbered(10_000, (index) => (index % 4 === 2 ? `other ${index}` : `line ${index}`)),
    );
    expect(countOf(lines)).toEqual({ added: 2_500, removed: 2_500 });
  });

  it("of lines that repeat comes to an end, and gives back both texts", () => {
    const olds = Array.from({ length: 20_000 }, (_, index) => String((index * 7919) % 13));
    const news = Array.from({ length: 20_000 }, (_, index) => String((index * 104_729) % 11));
    const lines = linesOf(olds.join("\n"), news.join("\n"));
    expect(before(lines)).toEqual(olds);
    expect(after(lines)).toEqual(news);
  });

  it("gives back both texts whatever they are", () => {
    let seed = 1;
    const random = (below: number): number => (seed = (seed * 48_271) % 2_147_483_647) % below;
    for (let round = 0; round < 300; round += 1) {
      const kinds = 1 + random(12);
      const [olds, news] = [0, 0].map(() => Array.from({ length: random(30) }, () => `l${random(kinds)}`)) as [string[], string[]];
      const lines = linesOf(olds.map((line) => `${line}\n`).join(""), news.map((line) => `${line}\n`).join(""));
      expect(before(lines)).toEqual(olds);
      expect(after(lines)).toEqual(news);
    }
  });

  it("finds single changes in ten thousand lines", () => {
    const lines = linesOf(
      numbered(10_000),
      numbered(10_000, (index) => (index % 1_000 === 500 ? "changed" : `line ${index}`)),
    );
    expect(countOf(lines)).toEqual({ added: 10, removed: 10 });
  });

  it("folds what stays, and opens it again", () => {
    const lines = linesOf(
      numbered(100),
      numbered(100, (index) => (index === 50 ? "changed" : `line ${index}`)),
    );
    const rows = folded(lines);
    expect(rows.filter(({ kind }) => kind === "fold")).toEqual([
      { kind: "fold", from: 0, lines: 47 },
      { kind: "fold", from: 55, lines: 46 },
    ]);
    expect(folded(lines, new Set([0, 55]))).toEqual(lines);
  });

  it("opens a fold of any length", () => {
    const lines = linesOf(numbered(300_000), `${numbered(300_000)}more\n`);
    expect(folded(lines, new Set([0]))).toHaveLength(300_001);
  });

  it("stands side by side", () => {
    const rows = paired(linesOf("a\nb\nc\n", "a\nx\ny\nc\n"));
    expect(rows.map((row) => row.kind === "pair" && [row.left?.text, row.right?.text])).toEqual([
      ["a", "a"],
      ["b", "x"],
      [undefined, "y"],
      ["c", "c"],
    ]);
  });

  it("marks the words that differ", () => {
    const lines = linesOf("the quick brown fox\n", "the slow brown fox\n");
    const others = counterparts(lines);
    const [removed] = lines as [Line];
    expect(wordsOf(removed, others.get(removed))?.filter(({ changed }) => changed)).toEqual([
      { text: "quick", changed: true },
    ]);
  });
});
