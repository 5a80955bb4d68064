import type { ContentBlock } from "@agentclientprotocol/sdk";
import { describe, expect, it } from "vitest";

import { wordsIn, writtenIn } from "./written.js";

const text = (words: string): ContentBlock => ({ type: "text", text: words });
const link = (uri: string): ContentBlock => ({ type: "resource_link", uri, name: "x" });
const image = (uri: string): ContentBlock => ({ type: "image", mimeType: "image/png", data: "aGk=", uri });

describe("a prompt as it was written", () => {
  it("has each attachment once, whichever way the agent got it", () => {
    const attachments = [{ path: "/srv/a b.md" }, { path: "./src/app.py" }, { path: "/srv/shot.png" }, { path: "/srv/x.bin" }];
    const blocks = [
      text("Look at these\n\nAttachments:\n- /srv/x.bin\n"),
      link("file:///srv/a%20b.md"),
      link("file:///srv/work/src/app.py"),
      image("file:///srv/shot.png"),
    ];
    const written = writtenIn({ blocks, attachments });
    expect(written.blocks).toEqual([text("Look at these")]);
    expect(written.files.map(({ attachment }) => attachment)).toEqual(attachments);
    expect(written.files.map((each) => each.image !== undefined)).toEqual([false, false, true, false]);
  });

  it("keeps links, images and lists that the person wrote", () => {
    const blocks = [text("See\n\nAttachments:\n- /srv/other\n"), link("file:///srv/other"), image("file:///srv/other.png"), link("https://x.example/a")];
    expect(writtenIn({ blocks, attachments: [{ path: "/srv/a" }] }).blocks).toEqual(blocks);
    expect(writtenIn({ blocks, attachments: [] }).blocks).toBe(blocks);
  });

  it("may be of files alone", () => {
    const message = { blocks: [text("\n\nAttachments:\n- /srv/x\n")], attachments: [{ path: "/srv/x" }] };
    expect(writtenIn(message).blocks).toEqual([]);
    expect(wordsIn(message)).toBe("");
  });
});
