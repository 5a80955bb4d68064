import { describe, expect, test } from "vitest";

import { type Place, hrefOf, placeOf } from "./router.js";

const place = (path: string): Place => placeOf(new URL(path, "http://127.0.0.1:2468"));

describe("addresses", () => {
  test.each<[string, Place]>([
    ["/ui/", { room: "mission" }],
    ["/ui/new", { room: "new" }],
    ["/ui/new?agent=claude&cwd=%2Fsrv", { room: "new", agent: "claude", cwd: "/srv" }],
    ["/ui/agents", { room: "agents" }],
    ["/ui/nodes", { room: "nodes" }],
    ["/ui/agents/claude", { room: "agents", agent: "claude" }],
    ["/ui/files?path=%2Fa+b", { room: "files", path: "/a b" }],
    ["/ui/replay", { room: "replay" }],
    ["/ui/sessions/s-1", { room: "session", id: "s-1" }],
    ["/ui/sessions/a%2Fb%3Fc?tab=changes&at=17", { room: "session", id: "a/b?c", tab: "changes", at: 17 }],
    ["/ui/sessions/s-1?tab=envelopes&event=5", { room: "session", id: "s-1", tab: "envelopes", event: 5 }],
    ["/ui/replay?at=3", { room: "replay", at: 3 }],
    ["/ui/embed/s-1?at=0", { room: "embed", id: "s-1", at: 0 }],
  ])("%s is a place, and its place has that address", (path, expected) => {
    expect(place(path)).toEqual(expected);
    expect(hrefOf(expected)).toBe(path);
  });

  test("what is no place says which path it was", () => {
    expect(place("/ui/nowhere/1")).toEqual({ room: "lost", path: "/ui/nowhere/1" });
    expect(place("/ui/sessions/a/b")).toEqual({ room: "lost", path: "/ui/sessions/a/b" });
  });

  test("a tab or a moment that makes no sense is left out", () => {
    expect(place("/ui/sessions/s-1?tab=x&at=soon")).toEqual({ room: "session", id: "s-1" });
    expect(place("/ui/sessions/s-1?at=-3")).toEqual({ room: "session", id: "s-1" });
    expect(place("/ui/sessions/%E0%A4%A")).toEqual({ room: "session", id: "%E0%A4%A" });
  });
});
