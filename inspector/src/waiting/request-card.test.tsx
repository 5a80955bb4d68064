// @vitest-environment jsdom
import { act, cleanup, fireEvent, render } from "@testing-library/react";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import {
  type ElicitationItem,
  EventIds,
  type PermissionItem,
  type QuestionItem,
  type ToolCallItem,
} from "sandboxagent";
import type { Answer } from "./answering.js";
import { RequestCard } from "./request-card.js";

const COMMON = {
  type: "request",
  key: "asked-1",
  events: EventIds.of(1),
  at: "2026-01-31T12:00:00.000Z",
  requestId: undefined,
  agentRequestId: 0,
  turnKey: "turn-1",
  decision: undefined,
} as const;
const OPTIONS = [
  { optionId: "yes", name: "Allow once", kind: "allow_once" },
  { optionId: "ever", name: "Always", kind: "allow_always" },
  { optionId: "no", name: "Reject", kind: "reject_once" },
] as const;

function permission(toolCall: Partial<PermissionItem["toolCall"]>): PermissionItem {
  return { ...COMMON, kind: "permission", toolCall: { toolCallId: "call-1", ...toolCall }, options: [...OPTIONS] };
}

function show(asked: PermissionItem | QuestionItem | ElicitationItem, tool?: ToolCallItem) {
  const answers: Answer[] = [];
  const onAnswer = async (answer: Answer): Promise<void> => void answers.push(answer);
  const card = (shown: typeof asked, known = tool) => (
    <RequestCard asked={shown} tool={known} onAnswer={onAnswer} keys agent="mock" />
  );
  const view = render(card(asked));
  const press = (key: string): void => void fireEvent.keyDown(document.body, { key });
  return { ...view, answers, press, redraw: (known: ToolCallItem) => view.rerender(card(asked, known)) };
}

beforeEach(() => {
  // A card answers to keys only after a moment.
  let now = 0;
  vi.spyOn(performance, "now").mockImplementation(() => (now += 1_000));
});
afterEach(cleanup);

describe("a permission card shows the command that was asked for, and no other", () => {
  const commandOf = (container: HTMLElement): string | undefined =>
    container.querySelector(".command-text")?.textContent ?? undefined;

  it("whatever its title and its texts claim", () => {
    const { container } = show(
      permission({
        title: "Run `ls`",
        kind: "execute",
        content: [{ type: "content", content: { type: "text", text: "```sh\nls\n```\n\nWill run: ls" } }],
        rawInput: { command: "rm -rf ~", description: "Lists files" },
      }),
    );
    expect(commandOf(container)).toBe("rm -rf ~");
    expect(container.querySelector(".action-says .command-text")).toBeNull();
  });

  it("whatever characters are in it", () => {
    const { container } = show(
      permission({ kind: "execute", rawInput: { command: "echo \u202e~ fr- mr\u202c #\u200b ls\u001b[2K\rls" } }),
    );
    expect(commandOf(container)).toBe("echo ‹U+202E›~ fr- mr‹U+202C› #‹U+200B› ls␛[2K␍ls");
  });

  it("however far its end is pushed away", () => {
    const { container } = show(
      permission({ rawInput: { command: `ls${" ".repeat(5_000)}${"\n".repeat(500)}; rm -rf ~` } }),
    );
    expect(commandOf(container)).toBe("ls␣×5000\n⏎×499\n; rm -rf ~");
  });

  it("with the borders of its arguments", () => {
    const { container } = show(permission({ rawInput: { command: ["sh", "-c", "rm -rf ~; echo 'x'"] } }));
    expect(commandOf(container)).toBe(`sh -c 'rm -rf ~; echo '\\''x'\\'''`);
  });

  it("and with its arguments when they come apart from it", () => {
    const { container } = show(permission({ rawInput: { command: "git", args: ["clean", "-fdx", "a b"] } }));
    expect(commandOf(container)).toBe("git clean -fdx 'a b'");
  });

  it("shows all when it is not clear which one counts", () => {
    const { container } = show(permission({ rawInput: { command: "ls", cmd: "rm -rf ~", args: ["x"] } }));
    expect(commandOf(container)).toBeUndefined();
    for (const each of ["ls", "rm -rf ~"])
      expect(container.querySelector(".action-inputs")?.textContent).toContain(each);
  });

  it("shows what else is passed along", () => {
    const { container } = show(
      permission({ rawInput: { command: "ls", cwd: "/etc", env: { LD_PRELOAD: "/tmp/x.so" }, background: true } }),
    );
    for (const each of ["/etc", "LD_PRELOAD", "/tmp/x.so", "true"])
      expect(container.querySelector(".action-inputs")?.textContent).toContain(each);
  });

  it("is not fooled by values that are no texts", () => {
    const { container } = show(permission({ rawInput: { command: { toString: "ls", real: "rm -rf ~" } } }));
    expect(container.textContent).toContain('"real": "rm -rf ~"');
  });

  it("shows no markup of the agent's", () => {
    const { container } = show(
      permission({ title: "<img src=x onerror=alert(1)>", rawInput: { command: "<b>ls</b>" } }),
    );
    expect(container.querySelector("img, b")).toBeNull();
    expect(commandOf(container)).toBe("<b>ls</b>");
  });

  it("warns when the agent changes it after it has asked", () => {
    const tool = (command: string): ToolCallItem => ({
      ...COMMON,
      type: "tool",
      key: "call-1",
      toolCallId: "call-1",
      title: "Run",
      kind: "execute",
      status: "pending",
      content: [],
      locations: [],
      rawInput: { command },
      rawOutput: undefined,
      meta: undefined,
      endedAt: undefined,
      requestKey: "asked-1",
    });
    const { container, redraw } = show(permission({ title: "Run" }), tool("ls"));
    expect(container.querySelector(".request-warning")).toBeNull();
    redraw(tool("rm -rf ~"));
    expect(container.querySelector(".request-warning")?.textContent).toContain("changed this after it asked");
    expect(commandOf(container)).toBe("rm -rf ~");
  });

  it("prefers what the request says to what was said before", () => {
    const tool: ToolCallItem = {
      ...COMMON,
      type: "tool",
      key: "call-1",
      toolCallId: "call-1",
      title: "Run ls",
      kind: "execute",
      status: "pending",
      content: [],
      locations: [],
      rawInput: { command: "ls" },
      rawOutput: undefined,
      meta: undefined,
      endedAt: undefined,
      requestKey: "asked-1",
    };
    const { container } = show(permission({ rawInput: { command: "rm -rf ~" } }), tool);
    expect(commandOf(container)).toBe("rm -rf ~");
  });

  it("says when the agent does not tell", () => {
    const { container } = show(permission({ title: "Do a thing" }));
    expect(container.textContent).toContain("does not say what it passes to its tool");
  });
});

describe("a permission card with a change", () => {
  const edit: Partial<PermissionItem["toolCall"]> = {
    kind: "edit",
    locations: [{ path: "/srv/app/a.py", line: 12 }],
    content: [{ type: "diff", path: "/srv/app/a.py", oldText: "one", newText: "two" }],
  };
  const namesIn = (root: ParentNode | null): unknown[] => [...(root?.querySelectorAll("dt") ?? [])].map(({ textContent }) => textContent);

  it("has the file's own line numbers", () => {
    const { container } = show(permission(edit));
    expect([...container.querySelectorAll(".diff-number")].map(({ textContent }) => textContent)).toEqual(["12", "", "", "12"]);
  });

  it("folds the arguments that the change shows, and no others", () => {
    const rawInput = { file_path: "/srv/app/a.py", old_string: "one", new_string: "two", replace_all: true, mode: "o" };
    const { container } = show(permission({ ...edit, rawInput }));
    expect(namesIn(container.querySelector("details"))).toEqual(["file_path", "old_string", "new_string"]);
    expect(container.querySelector("details")?.open).toBe(false);
    expect(namesIn(container.querySelector(".action > dl"))).toEqual(["replace_all", "mode"]);
  });
});

describe("a permission card", () => {
  it("shows the difference", () => {
    const { container } = show(
      permission({ kind: "edit", content: [{ type: "diff", path: "/a.txt", oldText: "old\n", newText: "new\n" }] }),
    );
    expect(container.querySelector(".diff-removed")?.textContent).toContain("old");
    expect(container.querySelector(".diff-added")?.textContent).toContain("new");
  });

  it("is answered by keys: a number, A, R", () => {
    for (const [key, answer] of [
      ["2", { type: "option", optionId: "ever" }],
      ["a", { type: "option", optionId: "yes" }],
      ["r", { type: "reject" }],
    ] as const) {
      const { press, answers, unmount } = show(permission({}));
      press(key);
      expect(answers).toEqual([answer]);
      unmount();
    }
  });

  it("is answered once", () => {
    const { press, answers } = show(permission({}));
    press("a");
    press("r");
    expect(answers).toHaveLength(1);
  });

  it("does not take what is typed in a field for an answer", () => {
    const { answers, getByText, getByLabelText } = show(permission({}));
    fireEvent.click(getByText("Reject with a reason…"));
    const field = getByLabelText("Reason");
    fireEvent.keyDown(field, { key: "a" });
    expect(answers).toEqual([]);
    fireEvent.change(field, { target: { value: "use git mv" } });
    fireEvent.submit(field);
    expect(answers).toEqual([{ type: "reject", reason: "use git mv" }]);
  });

  it("never guesses which option allows", () => {
    const asked = { ...permission({}), options: [OPTIONS[0], { ...OPTIONS[0], optionId: "other" }] };
    const { press, answers } = show(asked);
    press("a");
    expect(answers).toEqual([]);
  });

  it("says why an answer was not taken, and can be answered again", async () => {
    let calls = 0;
    const onAnswer = async (): Promise<void> => {
      calls += 1;
      throw new Error("the log cannot be written");
    };
    const { findByText, getByText } = render(<RequestCard asked={permission({})} onAnswer={onAnswer} />);
    await act(async () => void fireEvent.click(getByText("Allow once")));
    expect(await findByText("the log cannot be written")).toBeTruthy();
    await act(async () => void fireEvent.click(getByText("Reject")));
    expect(calls).toBe(2);
  });
});

describe("a question card", () => {
  const question = (multiSelect: boolean): QuestionItem => ({
    ...COMMON,
    kind: "question",
    questionId: "q-1",
    prompt: "Which color?",
    toolCallId: undefined,
    questions: [
      {
        question: "Which color?",
        multiSelect,
        options: [
          { id: "red", label: "Red" },
          { id: "blue", label: "Blue", description: "Sky" },
        ],
      },
    ],
  });

  it("is answered by a number", () => {
    const { press, answers } = show(question(false));
    press("2");
    expect(answers).toEqual([{ type: "answers", answers: [["blue"]] }]);
  });

  it("takes several where several may be chosen, and a free text", () => {
    const { getByLabelText, getByText, answers, press } = show(question(true));
    press("1");
    fireEvent.click(getByText("Blue"));
    fireEvent.change(getByLabelText("Another answer"), { target: { value: "mauve" } });
    fireEvent.click(getByText("Answer"));
    expect(answers).toEqual([{ type: "answers", answers: [["red", "blue", "mauve"]] }]);
  });

  it("waits for an answer to each question", () => {
    const { getByText } = show(question(false));
    expect((getByText("Answer") as HTMLButtonElement).disabled).toBe(true);
  });
});

describe("a form card", () => {
  const form: ElicitationItem = {
    ...COMMON,
    kind: "elicitation",
    message: "What would you like?",
    mode: "form",
    url: undefined,
    schema: {
      type: "object",
      properties: {
        color: { type: "string", title: "Color", enum: ["red", "green"] },
        gift: { type: "boolean", title: "Wrap it" },
        amount: { type: "integer", title: "How many", minimum: 1, maximum: 9 },
        extras: {
          type: "array",
          title: "Extras",
          items: {
            anyOf: [
              { const: "a", title: "Bow" },
              { const: "b", title: "Card" },
            ],
          },
        },
      },
      required: ["color"],
    },
  };

  it("hands in what was filled in, in the types of its schema", () => {
    const { getByLabelText, getByText, answers } = show(form);
    fireEvent.click(getByText("green"));
    fireEvent.click(getByText("Wrap it"));
    fireEvent.change(getByLabelText("How many"), { target: { value: "3" } });
    fireEvent.click(getByText("Card"));
    fireEvent.click(getByText("Submit"));
    expect(answers).toEqual([{ type: "content", content: { color: "green", gift: true, amount: 3, extras: ["b"] } }]);
  });

  it("that is a question in disguise is answered by a number", () => {
    const properties = {
      db: {
        type: "string",
        oneOf: [
          { const: "pg", title: "Postgres" },
          { const: "sq", title: "SQLite" },
        ],
      },
      db_note: { type: "string" },
    };
    const { press, answers } = show({ ...form, schema: { type: "object", properties } });
    press("2");
    expect(answers).toEqual([{ type: "content", content: { db: "sq" } }]);
  });

  it("says what is missing or wrong", () => {
    const { getByLabelText, getByText, answers, container } = show(form);
    fireEvent.change(getByLabelText("How many"), { target: { value: "30" } });
    fireEvent.click(getByText("Submit"));
    expect(answers).toEqual([]);
    expect(container.textContent).toContain("This is needed");
    expect(container.textContent).toContain("At most 9");
  });

  it("shows an address as it is, and leads only to one of the web", () => {
    const address = (url: string): ElicitationItem => ({ ...form, mode: "url", schema: undefined, url });
    const good = show(address("https://example.org/login"));
    expect(good.container.querySelector("a")?.href).toBe("https://example.org/login");
    good.unmount();
    const evil = show(address("javascript:alert(1)"));
    expect(evil.container.querySelector("a")).toBeNull();
    expect(evil.container.textContent).toContain("javascript:alert(1)");
  });
});
