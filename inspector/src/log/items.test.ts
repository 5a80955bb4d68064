import { describe, expect, it } from "vitest";

import { reduce } from "sandboxagent";
import { Script } from "../../../sdks/typescript/tests/support/script.js";
import { showing } from "./items.js";

describe("what shows an event", () => {
  const script = new Script().made();
  let said = 0;
  let tool = 0;
  script.turn("Hello", () => {
    tool = script.tool("call-1");
    said = script.say("Hi.");
    script.toolUpdate("call-1", { status: "completed" });
  });
  const mode = script.update({ sessionUpdate: "session_info_update", title: "New" });
  const view = reduce(script.entries);

  it("is the item that the event is a part of", () => {
    expect(showing(view, said)?.item).toMatchObject({ type: "text" });
    expect(showing(view, tool)?.item).toMatchObject({ type: "tool" });
    expect(showing(view, said + 1)?.item).toMatchObject({ type: "tool" });
  });

  it("is the turn for the turn's own events, and else what was shown last before it", () => {
    expect(showing(view, script.lastId - 1)?.turn).toBe(view.turns[0]);
    expect(showing(view, mode)?.turn).toBe(view.turns[0]);
    expect(showing(view, 1)).toBeUndefined();
  });
});
