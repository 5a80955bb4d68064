// @vitest-environment node
import { describe, expect, it } from "vitest";

import { GrowingBlocks, blocksOf } from "./blocks.js";

const SAMPLE = [
  "# A title\n\nSome *words*\nand more.\n\n",
  "- one\n- two\n\n  still two\n- three\n  - nested\n\n",
  "Setext\n======\n\n",
  "| a | b |\n|---|---|\n| 1 | 2 |\n\n",
  "```python\nprint('a')\n\nprint('b')\n```\n\n",
  "> quoted\n> text\n\n---\n\n1. first\n2. second\n\n",
  "    indented code\n\n<div>html</div>\n\nThe end.",
].join("");

describe("blocks of Markdown that grows", () => {
  it("are together exactly the text, at every length", () => {
    const growing = new GrowingBlocks();
    for (let length = 1; length <= SAMPLE.length; length += 1) {
      const text = SAMPLE.slice(0, length);
      expect(
        growing
          .of(text, false)
          .map(({ raw }) => raw)
          .join(""),
      ).toBe(text);
    }
  });

  it("end up as the blocks of the whole text, however it was cut", () => {
    const whole = blocksOf(SAMPLE).map(({ raw }) => raw);
    for (const step of [1, 2, 3, 7, 31]) {
      const growing = new GrowingBlocks();
      for (let length = step; length < SAMPLE.length; length += step) growing.of(SAMPLE.slice(0, length), false);
      expect(growing.of(SAMPLE, true).map(({ raw }) => raw)).toEqual(whole);
    }
  });

  it("keep their identity once finished", () => {
    const growing = new GrowingBlocks();
    const before = growing.of("First.\n\nSecond.\n\nThird", false);
    const after = growing.of("First.\n\nSecond.\n\nThird and more.\n\nFourth", false);
    expect(after[0]).toBe(before[0]);
  });

  it("start anew for another text", () => {
    const growing = new GrowingBlocks();
    growing.of("First.\n\nSecond.\n\nThird", false);
    expect(growing.of("Other.", true)).toEqual([{ raw: "Other.", finished: true }]);
  });

  it("survive what would overflow a parser", () => {
    for (const text of [
      ">".repeat(50_000),
      "- ".repeat(50_000),
      "[".repeat(50_000),
      `${"> ".repeat(5_000)}\n`.repeat(3),
    ]) {
      expect(
        blocksOf(text)
          .map(({ raw }) => raw)
          .join(""),
      ).toBe(text);
    }
  });

  it("of a million characters without a line break are found quickly enough to show them", () => {
    const growing = new GrowingBlocks();
    const text = "word ".repeat(200_000);
    for (let length = 10_000; length <= text.length; length += 10_000) growing.of(text.slice(0, length), false);
    expect(
      growing
        .of(text, true)
        .map(({ raw }) => raw)
        .join(""),
    ).toBe(text);
  });
});
