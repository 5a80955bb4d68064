import { expect, test } from "vitest";

import { crumbsOf, joined, nameOf, parentOf } from "./paths.js";

test("a path has the root and each directory on its way", () => {
  expect(crumbsOf("/srv/app")).toEqual([
    { name: "/", path: "/" },
    { name: "srv", path: "/srv" },
    { name: "app", path: "/srv/app" },
  ]);
  expect(crumbsOf("/")).toEqual([{ name: "/", path: "/" }]);
});

test("names and parents of paths, at the root as well", () => {
  expect([joined("/", "a"), joined("/a", "b")]).toEqual(["/a", "/a/b"]);
  expect([parentOf("/a/b"), parentOf("/a"), parentOf("/")]).toEqual(["/a", "/", "/"]);
  expect([nameOf("/a/b"), nameOf("/")]).toEqual(["b", "/"]);
});
