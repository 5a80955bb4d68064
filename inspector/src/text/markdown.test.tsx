// @vitest-environment jsdom
import { cleanup, render } from "@testing-library/react";
import { afterEach, describe, expect, it } from "vitest";

import { Ansi } from "./ansi.js";
import { Code } from "./code.js";
import { Diff } from "./diff.js";
import { Markdown, followable } from "./markdown.js";

afterEach(cleanup);

const HOSTILE = [
  "<script>window.harmed = true</script>",
  '<img src=x onerror="window.harmed = true">',
  "<iframe src='https://elsewhere.example'></iframe>",
  "<svg onload='window.harmed = true'><style>body{display:none}</style></svg>",
  "[click](javascript:window.harmed=true)",
  "[click](JaVaScRiPt&#58;window.harmed=true)",
  "[click](data:text/html;base64,PHNjcmlwdD4=)",
  "[click](https://user:pass@elsewhere.example)",
  "<a href='javascript:alert(1)'>x</a> <form action='https://elsewhere.example'><input name=a></form>",
  "![pixel](https://elsewhere.example/pixel.png)",
  "![svg](data:image/svg+xml;base64,PHN2Zz4=)",
  '<https://elsewhere.example/"onmouseover="alert(1)>',
  '```"><script>window.harmed = true</script>\ncode\n```',
  "| <script>a</script> | b |\n|---|---|\n| <b onclick=x>y</b> | z |",
  "a\u202Eb\u0000c",
];

describe("Markdown", () => {
  it("becomes elements", () => {
    const { container } = render(
      <Markdown
        text={
          "# Title\n\nSome **bold** and `code`.\n\n- a\n  - nested\n- [x] done\n\n| h | i |\n|---|--:|\n| 1 | 2 |\n\n```ts\nconst a = 1;\n```\n\n1. one\n2. two"
        }
      />,
    );
    expect(container.querySelector("h3")?.textContent).toBe("Title");
    expect(container.querySelector("strong")?.textContent).toBe("bold");
    expect(container.querySelector("ul ul li")?.textContent).toBe("nested");
    expect(container.querySelector("td.markdown-right")?.textContent).toBe("2");
    expect(container.querySelector("pre code")?.textContent).toBe("const a = 1;");
    expect(container.querySelectorAll("ol > li")).toHaveLength(2);
    expect((container.querySelector("input[type=checkbox]") as HTMLInputElement).checked).toBe(true);
  });

  it.each(HOSTILE)("shows %j and does nothing", (text) => {
    const { container } = render(<Markdown text={text} />);
    expect(
      container.querySelector("script, iframe, style, form, svg.evil, object, embed, link, meta, base"),
    ).toBeNull();
    for (const element of container.querySelectorAll("*")) {
      for (const { name } of element.attributes) expect(name.startsWith("on")).toBe(false);
    }
    for (const link of container.querySelectorAll("a")) {
      expect(link.href).toMatch(/^(https?|mailto):/);
      expect(link.rel).toContain("noopener");
    }
    expect(container.querySelector("img")).toBeNull();
    expect((globalThis as { harmed?: boolean }).harmed).toBeUndefined();
  });

  it("hides nothing of HTML", () => {
    const { container } = render(<Markdown text={"before <!-- a comment --> after\n\n<div hidden>secret</div>"} />);
    expect(container.textContent).toContain("<!-- a comment -->");
    expect(container.textContent).toContain("<div hidden>secret</div>");
  });

  it("shows images that came with it", () => {
    const { container } = render(<Markdown text="![dot](data:image/png;base64,iVBORw0KGgo=)" />);
    expect(container.querySelector("img")?.alt).toBe("dot");
  });

  it("draws finished blocks once", () => {
    const { container, rerender } = render(<Markdown text={"First.\n\nSecond.\n\nThird"} streaming />);
    const [first] = container.querySelectorAll("p");
    rerender(<Markdown text={"First.\n\nSecond.\n\nThird grows.\n\nFourth"} streaming />);
    expect(container.querySelectorAll("p")[0]).toBe(first);
    expect(container.querySelectorAll("p")).toHaveLength(4);
  });

  it("survives what would overflow or stall a parser", () => {
    for (const text of [
      ">".repeat(20_000),
      "_a".repeat(8_000),
      "**a*".repeat(4_000),
      "[".repeat(30_000),
      "*a ".repeat(10_000),
      "`a ".repeat(10_000),
      "![](".repeat(8_000),
      "<".repeat(30_000),
    ]) {
      expect(render(<Markdown text={text} />).container.textContent?.length).toBeGreaterThan(1_000);
      cleanup();
    }
  });

  it("follows only addresses that lead where they say", () => {
    expect(followable("https://example.org/a")).toBe("https://example.org/a");
    expect(followable("javascript:alert(1)")).toBeUndefined();
    expect(followable("//example.org")).toBeUndefined();
    expect(followable("https://good.example@evil.example")).toBeUndefined();
  });
});

describe("code, output and differences", () => {
  it("show markup as text", () => {
    const evil = "<img src=x onerror=alert(1)>";
    for (const view of [
      <Code key={1} text={evil} language="html" />,
      <Ansi key={2} output={`\u001b[31m${evil}`} />,
      <Diff key={3} path="a.html" before={undefined} after={evil} />,
    ]) {
      const { container } = render(view);
      expect(container.textContent).toContain(evil);
      expect(container.querySelector("img")).toBeNull();
      cleanup();
    }
  });

  it("mark what reorders a line", () => {
    const { container } = render(<Diff path="a.py" before={undefined} after={"if admin:\u202e # ok"} />);
    expect(container.querySelector(".text-mark")?.getAttribute("title")).toBe("right-to-left override");
  });

  it("cut a huge line, and say how much is missing", () => {
    const { container } = render(<Diff path="a.min.js" before={undefined} after={"x".repeat(1_000_000)} />);
    expect(container.textContent?.length).toBeLessThan(5_000);
    expect(container.textContent).toContain("998,000 more characters");
  });

  it("have the file's own line numbers, or none", () => {
    const numbers = (view: HTMLElement): unknown[] => [...view.querySelectorAll(".diff-number")].map(({ textContent }) => textContent);
    const change = { path: "a.txt", before: "a\nb\n", after: "a\nc\n" };
    expect(numbers(render(<Diff {...change} start={{ old: 40, new: 42 }} />).container)).toEqual(["40", "42", "41", "", "", "43"]);
    expect(numbers(render(<Diff {...change} start={{ old: 40, new: 42 }} layout="split" />).container)).toEqual(["40", "42", "41", "43"]);
    expect(numbers(render(<Diff {...change} />).container)).toEqual([]);
    expect(numbers(render(<Diff {...change} before={undefined} />).container)).toEqual(["", "1", "", "2"]);
  });

  it("draw a part of ten thousand lines", () => {
    const { container } = render(<Diff path="a.txt" before={undefined} after={"line\n".repeat(10_000)} />);
    expect(container.querySelectorAll(".diff-row").length).toBeLessThan(200);
  });
});

describe("the name of a code's language", () => {
  it("hides nothing, where it is seen and where it is heard", () => {
    const { container } = render(<Markdown text={"```sh\u202ef-\u200b\nls\n```"} />);
    expect(container.querySelector(".code-language")?.textContent).toBe("sh‹U+202E›f-‹U+200B›");
    expect(container.querySelector("pre")?.getAttribute("aria-label")).toBe("code sh‹U+202E›f-‹U+200B›");
  });

  it("hides nothing in a label, and is cut when it is long", () => {
    const { container } = render(<Code text="ls" label={`file:///a\u202e${"b".repeat(500)}`} />);
    expect(container.querySelector(".code-language")?.textContent).toContain("file:///a‹U+202E›b");
    expect(container.querySelector("pre")?.getAttribute("aria-label")).not.toContain("\u202e");
    expect(container.querySelector("pre")?.getAttribute("aria-label")?.length).toBeLessThan(300);
  });
});
