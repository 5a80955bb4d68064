// @vitest-environment node
import { describe, expect, it } from "vitest";

import { plainOf, screenOf } from "./terminal.js";

const shown = (output: string): string => plainOf(screenOf(output));

describe("what a command wrote", () => {
  it("has its colours", () => {
    const [line] = screenOf("\u001b[1;31mred\u001b[0m plain \u001b[38;5;208morange \u001b[48;2;1;2;3mback").lines;
    expect(line).toEqual([
      { text: "red", style: { bold: true, color: 1 } },
      { text: " plain ", style: {} },
      { text: "orange ", style: { color: 208 } },
      { text: "back", style: { color: 208, background: "#010203" } },
    ]);
  });

  it("shows the last state of a line that was written over", () => {
    expect(shown("10%\r50%\r100%\ndone\n")).toBe("100%\ndone\n");
    expect(shown("abc\rX")).toBe("Xbc");
    expect(shown("abc\u001b[2K\rX")).toBe("X");
    expect(shown("abc\b\bX")).toBe("aXc");
  });

  it("drops whatever else steers a terminal", () => {
    expect(
      shown(
        "a\u001b[2J\u001b[10;10Hb\u001b]0;title\u0007c\u001b]8;;http://x\u001b\\link\u001b]8;;\u001b\\\u001bPq#0\u001b\\d\u001b(Be",
      ),
    ).toBe("abclinkde");
    expect(shown("a\u001b]52;c;ZXZpbA==")).toBe("a");
  });

  it("keeps every other control character, for the view to mark", () => {
    expect(shown("a\u0000b")).toBe("a\u0000b");
  });

  it("survives floods of escapes", () => {
    expect(shown("\u001b[31m".repeat(200_000) + "x")).toBe("x");
    expect(screenOf("\u001b[31mx\u001b[32my".repeat(100_000)).lines[0]?.length).toBeLessThanOrEqual(400);
    expect(shown("\u001b[999999999C".repeat(50_000) + "x").length).toBeLessThanOrEqual(10_001);
    expect(shown(`${"\u001b[".repeat(100_000)}xy`)).toBe("y");
  });

  it("says how much it leaves out", () => {
    const screen = screenOf("line\n".repeat(300_000));
    expect(screen.lines.length).toBeLessThanOrEqual(20_000);
    expect(screen.omitted).toBeGreaterThan(0);
    expect(screenOf("\n".repeat(50_000)).lines.length).toBeLessThanOrEqual(20_000);
  });

  it("of one line that is written over a hundred thousand times comes to an end", () => {
    expect(shown("\rxy".repeat(100_000))).toBe("xy");
  });
});
