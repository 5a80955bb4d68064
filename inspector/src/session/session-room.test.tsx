// @vitest-environment jsdom
import { cleanup, render } from "@testing-library/react";
import { afterEach, describe, expect, it } from "vitest";

import { LeftOut } from "./session-room.js";

afterEach(cleanup);

describe("facts that a session lacks", () => {
  it("are named, and nothing is said when there are none", () => {
    expect(render(<LeftOut session={{ leftOut: ["metadata", "title"] }} />).container.textContent).toContain(
      "Not shown: metadata, title.",
    );
    expect(render(<LeftOut session={{}} />).container.textContent).toBe("");
  });
});
