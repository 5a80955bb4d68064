// @vitest-environment jsdom
import { act, cleanup, fireEvent, render } from "@testing-library/react";
import { PermissionRequest, type SessionInfo } from "sandboxagent";
import { afterEach, describe, expect, it } from "vitest";

import { SettledAlready } from "../waiting/answering.js";
import { askedOf } from "../waiting/pending.js";
import type { Waiting } from "./open-questions.js";
import { Questions } from "./questions.js";

afterEach(cleanup);

const WAITING: Waiting = {
  session: { sessionId: "s-1", agent: "mock", title: "Tidy up" } as unknown as SessionInfo,
  asked: askedOf(
    new PermissionRequest(
      "1",
      {
        sessionId: "s-1",
        toolCall: { toolCallId: "call-1", rawInput: { command: "ls" } },
        options: [{ optionId: "yes", name: "Allow once", kind: "allow_once" }],
      },
      new AbortController().signal,
      console,
    ),
    "pending-1",
  ),
};

describe("an answer that came too late", () => {
  it("is announced once, on its card and after the card has gone", async () => {
    let settle: (error: Error) => void = () => undefined;
    const onAnswer = (): Promise<void> => new Promise((_, reject) => (settle = reject));
    const view = render(<Questions waiting={[WAITING]} onAnswer={onAnswer} />);
    fireEvent.click(view.getByText("Allow once"));
    await act(async () => settle(new SettledAlready()));
    expect(view.getByRole("alert").textContent).toContain("settled already");

    view.rerender(<Questions waiting={[]} onAnswer={onAnswer} />);
    expect(view.getByRole("alert").textContent).toContain("settled already");
    expect(view.getByRole("alert").textContent).toContain("Tidy up");

    fireEvent.click(view.getByText("Dismiss"));
    expect(view.container.textContent).toBe("");
  });

  it("is announced when its card has gone before", async () => {
    let settle: (error: Error) => void = () => undefined;
    const onAnswer = (): Promise<void> => new Promise((_, reject) => (settle = reject));
    const view = render(<Questions waiting={[WAITING]} onAnswer={onAnswer} />);
    fireEvent.click(view.getByText("Allow once"));
    view.rerender(<Questions waiting={[]} onAnswer={onAnswer} />);
    await act(async () => settle(new SettledAlready()));
    expect(view.getByRole("alert").textContent).toContain("Your answer was not sent");
  });
});
