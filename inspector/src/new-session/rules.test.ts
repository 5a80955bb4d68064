import { expect, test } from "vitest";

import { rulesOf } from "./rules.js";

test("rules keep their order, and those that say nothing are left out", () => {
  expect(
    rulesOf([
      { id: 1, action: "reject", subject: "path", value: " ~/.ssh/** " },
      { id: 2, action: "allow", subject: "command", value: " " },
      { id: 3, action: "allow", subject: "command", value: "npm test" },
    ]),
  ).toEqual([
    { path: "~/.ssh/**", action: "reject" },
    { command: "npm test", action: "allow" },
  ]);
});
