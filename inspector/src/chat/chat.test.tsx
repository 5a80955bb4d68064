// @vitest-environment jsdom
import { cleanup, render } from "@testing-library/react";
import { afterEach, describe, expect, it } from "vitest";

import type { SessionView } from "sandboxagent";
import { Script } from "../../../sdks/typescript/tests/support/script.js";
import { SessionLog } from "../log/session-log.js";
import { RowView, countText } from "./row-view.js";
import { rowOfEvent, rowsOf } from "./rows.js";

afterEach(cleanup);

function viewOf(play: (script: Script) => void): SessionView {
  const script = new Script().made();
  const prompt = script.prompt("go");
  script.started(prompt);
  play(script);
  return SessionLog.of("s-1", script.entries).view();
}

/** All rows, without the list that draws only those in view. */
function show(view: SessionView, isLive = true): HTMLElement {
  return render(
    <>
      {rowsOf(view).map((row) => (
        <RowView key={row.key} row={row} view={view} isLive={isLive} isFocused={false} />
      ))}
    </>,
  ).container;
}

describe("the transcript", () => {
  it("shows messages, folded thoughts and that the agent works", () => {
    const container = show(
      viewOf((script) => {
        script.update({ sessionUpdate: "agent_thought_chunk", content: { type: "text", text: "Hmm, **let** me see" } });
        script.update({ sessionUpdate: "agent_message_chunk", content: { type: "text", text: "Here **it** is" } });
      }),
    );
    expect(container.querySelector(".user-text")?.textContent).toBe("go");
    expect(container.querySelector(".thought-head")?.getAttribute("aria-expanded")).toBe("false");
    expect(container.querySelector(".item-text strong")?.textContent).toBe("it");
    expect(container.textContent).toContain("Working");
  });

  it("shows tool calls with their kind, place, status and difference", () => {
    const container = show(
      viewOf((script) =>
        script.update({
          sessionUpdate: "tool_call",
          toolCallId: "c1",
          title: "Edit a file",
          kind: "edit",
          status: "completed",
          locations: [{ path: "/srv/app/src/a.ts", line: 7 }],
          content: [{ type: "diff", path: "/srv/app/src/a.ts", oldText: "a\n", newText: "b\n" }],
        }),
      ),
    );
    expect(container.querySelector(".tool")?.getAttribute("data-status")).toBe("completed");
    expect([...container.querySelectorAll(".diff-number")].map(({ textContent }) => textContent)).toEqual(["7", "", "", "7"]);
    expect(container.querySelector(".tool-where")?.textContent).toBe("src/a.ts:7");
    expect(container.querySelector(".diff-added")?.textContent).toContain("b");
  });

  it("shows what a command wrote with its colours, and the command itself", () => {
    const container = show(
      viewOf((script) =>
        script.update({
          sessionUpdate: "tool_call",
          toolCallId: "c1",
          title: "Test",
          kind: "execute",
          status: "failed",
          rawInput: { command: "npm test" },
          content: [{ type: "content", content: { type: "text", text: "```\n\u001b[31mred\u001b[0m\n```" } }],
        }),
      ),
    );
    expect(container.querySelector(".tool-command")?.textContent).toBe("npm test");
    expect(container.querySelector(".ansi-fg-1")?.textContent).toBe("red");
  });

  it("shows what an agent's own terminal wrote", () => {
    const container = show(
      viewOf((script) => {
        const terminal_id = "t-1";
        const facts = { title: "Test", kind: "execute", rawInput: { command: "make" } };
        script.tool("c1", {
          ...facts,
          content: [{ type: "terminal", terminalId: terminal_id }],
          _meta: { terminal_info: { terminal_id } },
        });
        script.toolUpdate("c1", { _meta: { terminal_output: { terminal_id, data: "one\n" } } });
        script.toolUpdate("c1", { _meta: { terminal_output: { terminal_id, data: "two\n" } } });
        script.toolUpdate("c1", {
          status: "failed",
          _meta: { terminal_exit: { terminal_id, exit_code: 2, signal: null } },
        });
      }),
    );
    expect([...container.querySelectorAll(".ansi-line")].map((line) => line.textContent)).toEqual(["one", "two"]);
    expect(container.querySelector(".terminal-exit")?.textContent).toBe("exit code 2");
    expect(container.querySelectorAll(".tool-command")).toHaveLength(1);
  });

  it("shows a crash with what the agent wrote to stderr", () => {
    const script = new Script().made();
    const prompt = script.prompt("go");
    script.started(prompt);
    const data = {
      type: "agent-exited",
      exitCode: 3,
      stderr: { head: ["boom", "bang"], tail: [], truncated: false, totalLines: 2 },
    };
    script.event("fromAgent", {
      id: prompt.rpc,
      error: { code: -32603, message: "agent mock exited with code 3", data },
    });
    const container = show(SessionLog.of("s-1", script.entries).view());
    expect(container.querySelector(".failure")?.textContent).toContain("agent mock exited with code 3");
    expect(container.querySelector(".failure .ansi")?.textContent).toBe("boombang");
  });

  it("shows where events are missing", () => {
    const script = new Script().made();
    script.entries.push({ sessionUpdate: "gap", after: script.lastId, resumesAt: 5_310 });
    expect(show(SessionLog.of("s-1", script.entries).view()).textContent).toContain("before 5310 are no longer kept");
  });

  it("survives content of a wrong shape", () => {
    const container = show(
      viewOf((script) => {
        script.update({
          sessionUpdate: "tool_call",
          toolCallId: "c1",
          title: 7,
          kind: "evil",
          status: "odd",
          content: [{ type: "content" }, { type: "x" }, null],
          locations: [{}],
        });
        script.update({
          sessionUpdate: "agent_message_chunk",
          content: { type: "image", data: "%%%", mimeType: "image/svg+xml" },
        });
        script.update({ sessionUpdate: "plan", entries: [{ content: 3 }] });
      }),
    );
    expect(container.querySelectorAll(".item").length).toBeGreaterThan(1);
    expect(container.querySelector("img")).toBeNull();
  });

  it("says of a prompt that was stopped while it waited that it never began", () => {
    const container = show(
      viewOf((script) => {
        const second = script.prompt("two");
        script.ended(second, "cancelled");
      }),
    );
    expect([...container.querySelectorAll(".turn-cancelled")].map((end) => end.textContent)).toEqual(["Stopped before it began"]);
  });

  it("finds the row of an event", () => {
    const view = viewOf((script) => {
      script.update({ sessionUpdate: "agent_message_chunk", content: { type: "text", text: "a" } });
      script.update({ sessionUpdate: "agent_message_chunk", content: { type: "text", text: "b" } });
    });
    const rows = rowsOf(view);
    const row = rows[rowOfEvent(rows, view.position)];
    expect(row?.kind === "item" && row.item.type).toBe("text");
    expect(rowOfEvent(rows, 0)).toBe(-1);
  });

  it("turns what has not changed into the same rows", () => {
    const script = new Script().made();
    const first = script.prompt("one");
    script.started(first);
    script.ended(first);
    const log = new SessionLog("s-1", (call) => call());
    for (const entry of script.entries) log.append(entry);
    const [before] = rowsOf(log.view());
    const more = new Script(script.lastId + 1);
    more.started(more.prompt("two"));
    for (const entry of more.entries) log.append(entry);
    expect(rowsOf(log.view())[0]).toBe(before);
  });
});

describe("counts", () => {
  it("are short", () => {
    expect([812, 1_234, 45_678, 1_234_567].map(countText)).toEqual(["812", "1.2k", "46k", "1.2M"]);
  });
});
