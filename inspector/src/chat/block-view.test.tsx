// @vitest-environment jsdom
import { cleanup, render } from "@testing-library/react";
import { afterEach, describe, expect, it } from "vitest";

import { BlockView } from "./block-view.js";

afterEach(cleanup);

describe("what an agent chooses hides nothing", () => {
  it("in the address of a link", () => {
    const uri = "file:///srv/\u202etxt.exe\u200b";
    const { container } = render(<BlockView block={{ type: "resource_link", uri, name: "notes" }} />);
    expect(container.querySelector(".chip")?.getAttribute("title")).toBe("file:///srv/‹U+202E›txt.exe‹U+200B›");
  });

  it("in the name of a file that came along", () => {
    const resource = { uri: "file:///srv/\u202etxt.exe", text: "hello" };
    const { container } = render(<BlockView block={{ type: "resource", resource }} />);
    expect(container.querySelector(".code-language")?.textContent).toBe("file:///srv/‹U+202E›txt.exe");
  });

  it("in the kind of an image or a sound that cannot be shown", () => {
    for (const type of ["image", "audio"] as const) {
      const { container } = render(<BlockView block={{ type, data: "", mimeType: "x/\u202ey" }} />);
      expect(container.textContent).toContain("(x/‹U+202E›y)");
    }
  });
});
