// @vitest-environment jsdom
import { act, cleanup, fireEvent, render } from "@testing-library/react";
import type { AvailableCommand } from "@agentclientprotocol/sdk";
import { EMPTY_VIEW, type Session, type SessionView } from "sandboxagent";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { Script } from "../../../sdks/typescript/tests/support/script.js";
import { SessionLog } from "../log/session-log.js";
import { completed, matching } from "./commands.js";
import { Composer } from "./composer.js";
import { keepDraft, readDraft } from "./drafts.js";
import { focusComposer } from "./focus.js";
import { promptsOf } from "./history.js";
import { fileName } from "./uploads.js";

const COMMANDS = ["review", "compact", "preview"].map((name): AvailableCommand => ({
  name,
  description: `does ${name}`,
}));

function fakeSession() {
  const prompts: unknown[][] = [];
  const written: string[] = [];
  const turn = (): PromiseLike<never> & { promptId: string } =>
    ({ promptId: `p${prompts.length}`, then: () => new Promise<never>(() => undefined) }) as never;
  const session = {
    prompt: (...given: unknown[]) => {
      prompts.push(given);
      return turn();
    },
    cancel: vi.fn(async () => undefined),
    modes: async () => ({ availableModes: [], currentModeId: null }),
    configOptions: [],
    files: {
      write: async (path: string) => {
        written.push(path);
        return { path: `/srv/${path}` };
      },
    },
  };
  return { session: session as unknown as Session, cancel: session.cancel, prompts, written };
}

function show(view: SessionView = EMPTY_VIEW) {
  const fake = fakeSession();
  const composer = (): React.ReactNode => (
    <Composer sessionId="s-1" session={fake.session} view={view} dropped={{ take: undefined }} />
  );
  const shown = render(composer());
  const field = shown.getByLabelText("Prompt") as HTMLTextAreaElement;
  const type = (text: string): void => void fireEvent.change(field, { target: { value: text } });
  const press = (key: string, more: object = {}): void => void fireEvent.keyDown(field, { key, ...more });
  return { ...fake, ...shown, field, type, press };
}

beforeEach(() => localStorage.clear());
afterEach(cleanup);

describe("the composer", () => {
  it("sends with Enter, and breaks the line with Shift and Enter", () => {
    const { type, press, prompts, field } = show();
    type("hello");
    press("Enter", { shiftKey: true });
    expect(prompts).toEqual([]);
    press("Enter");
    expect(prompts).toEqual([["hello", {}]]);
    expect(field.value).toBe("");
  });

  it("does not send what is being composed", () => {
    const { type, press, prompts } = show();
    type("こん");
    press("Enter", { isComposing: true, keyCode: 229 });
    expect(prompts).toEqual([]);
  });

  it("keeps what was typed over a reload", () => {
    const first = show();
    first.type("half a thought");
    first.unmount();
    expect(show().field.value).toBe("half a thought");
  });

  it("uploads what is pasted, and sends it along", async () => {
    const { field, type, press, prompts, written, findByText } = show();
    const file = new File(["x"], "shot.png", { type: "image/png" });
    await act(async () => void fireEvent.paste(field, { clipboardData: { files: [file], types: ["Files"] } }));
    await findByText("shot.png");
    type("look");
    press("Enter");
    expect(written.at(-1)).toMatch(/^\.sandbox-agent\/attachments\/[0-9a-f]{8}\/shot\.png$/);
    expect(prompts).toEqual([["look", { attachments: [{ path: `/srv/${written.at(-1)}`, filename: "shot.png" }] }]]);
  });

  it("stops the turn that runs, and queues what is written meanwhile", () => {
    const { cancel, getByLabelText, type, prompts } = show({ ...EMPTY_VIEW, status: "running" });
    type("and then this");
    fireEvent.click(getByLabelText("Add to the queue"));
    expect(prompts).toEqual([["and then this", {}]]);
    fireEvent.click(getByLabelText("Stop the turn"));
    expect(cancel).toHaveBeenCalledOnce();
  });

  it("is left with Escape, which stops nothing and keeps what was written", () => {
    const { cancel, field, type, press } = show({ ...EMPTY_VIEW, status: "running" });
    for (const text of ["", "half a thought"]) {
      act(() => field.focus());
      type(text);
      press("Escape");
      expect(document.activeElement).toBe(document.body);
      expect(field.value).toBe(text);
    }
    expect(cancel).not.toHaveBeenCalled();
  });

  it("has the focus at once in a session that was just made, and in no other", () => {
    focusComposer("s-1");
    const { field, unmount } = show();
    expect(document.activeElement).toBe(field);
    unmount();
    expect(document.activeElement).not.toBe(show().field);
  });

  it("completes slash commands by keyboard", () => {
    const { type, press, field, getAllByRole, queryByRole, prompts } = show({ ...EMPTY_VIEW, commands: COMMANDS });
    type("/re");
    expect(getAllByRole("option").map((each) => each.querySelector("code")?.textContent)).toEqual([
      "/review",
      "/preview",
    ]);
    press("ArrowDown");
    press("Enter");
    expect(field.value).toBe("/preview ");
    expect(queryByRole("listbox")).toBeNull();
    expect(prompts).toEqual([]);
  });

  it("walks through earlier prompts, and back to what was being written", () => {
    const script = new Script().made();
    for (const text of ["first", "second"]) {
      const prompt = script.prompt(text);
      script.started(prompt);
      script.ended(prompt);
    }
    const { press, field } = show(SessionLog.of("s-1", script.entries).view());
    press("ArrowUp");
    expect(field.value).toBe("second");
    press("ArrowUp");
    press("ArrowUp");
    expect(field.value).toBe("first");
    press("ArrowDown");
    press("ArrowDown");
    expect(field.value).toBe("");
  });
});

describe("slash commands", () => {
  it("fit while the first word is being typed", () => {
    expect(matching("/c", 2, COMMANDS)?.map(({ name }) => name)).toEqual(["compact"]);
    expect(matching("/compact now", 12, COMMANDS)).toBeUndefined();
    expect(matching("a /c", 4, COMMANDS)).toBeUndefined();
    expect(matching("/nothing", 8, COMMANDS)).toBeUndefined();
  });

  it("keep what follows them", () => {
    expect(completed("/c the rest", 2, COMMANDS[1] as AvailableCommand)).toBe("/compact the rest");
  });
});

describe("drafts", () => {
  it("that cannot be read are empty", () => {
    localStorage.setItem("inspector.draft.s-1", "{broken");
    expect(readDraft("s-1")).toEqual({ text: "", attachments: [] });
    localStorage.setItem("inspector.draft.s-1", JSON.stringify({ text: 3 }));
    expect(readDraft("s-1")).toEqual({ text: "", attachments: [] });
  });

  it("that are empty leave nothing behind", () => {
    keepDraft("s-1", { text: "x", attachments: [] });
    keepDraft("s-1", { text: "", attachments: [] });
    expect(localStorage.length).toBe(0);
  });
});

describe("names of attached files", () => {
  it("are one name, with nothing in them that misleads", () => {
    expect(fileName("../../etc/passwd")).toBe("__.._etc_passwd");
    expect(fileName("a\u202egnp.exe")).toBe("a_gnp.exe");
    expect(fileName("")).toBe("file");
    expect(fileName("x".repeat(500)).length).toBe(120);
  });
});

describe("earlier prompts", () => {
  it("are those of the session, each once in a row", () => {
    const script = new Script().made();
    for (const text of ["same", "same", "other"]) script.started(script.prompt(text));
    expect(promptsOf(SessionLog.of("s-1", script.entries).view())).toEqual(["same", "other"]);
  });
});
