/** The agents of a server, and installing them. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { type InstallResult, type Progress, type SandboxAgent, ServerProblem } from "sandboxagent";

import { TestServer } from "./support/server.js";
import { all, within } from "./support/waiting.js";

const BOUNDED = { timeout: 180_000 };

describe("agents", () => {
  let server: TestServer;
  let client: SandboxAgent;

  before(async () => {
    server = await TestServer.start();
    client = await server.connect();
  });

  after(async () => {
    await client.close();
    await server.close();
  });

  test("health tells of the server and its agents", BOUNDED, async () => {
    const health = await client.health();

    assert.equal(health.status, "ok");
    assert.ok(health.agents.some(({ agent, installed }) => agent === "mock" && installed));
  });

  test("all agents are listed, and one is shown", BOUNDED, async () => {
    const agents = await client.agents.list();
    const mock = await client.agents.get("mock");

    assert.ok(["claude", "codex", "mock", "scripted"].every((id) => agents.some((agent) => agent.id === id)));
    assert.deepEqual(
      [mock.title, mock.installed, mock.install.source, mock.features?.questions],
      ["Mock", true, "bundled", "extension"],
    );
    assert.ok((await client.agents.list({ registry: true })).length >= agents.length);
    await assert.rejects(
      client.agents.get("cluade"),
      (error) => error instanceof ServerProblem && error.slug === "unknown-agent",
    );
  });

  test("models and modes are there before a first session", BOUNDED, async () => {
    const models = await client.agents.models("mock");
    const mock = await client.agents.get("mock");

    assert.ok(models.availableModels.some(({ modelId }) => modelId === models.currentModelId));
    assert.deepEqual(mock.models, models);
    assert.ok(mock.modes?.availableModes.length);
    await assert.rejects(
      client.agents.models("claude"),
      (error) => error instanceof ServerProblem && error.slug === "agent-not-installed",
    );
  });

  test("an install tells of its progress and ends with the result", BOUNDED, async () => {
    const install = client.agents.install("mock");

    const steps = await within(all(install));

    const result = steps.at(-1) as InstallResult;
    assert.deepEqual([result.agent, result.alreadyInstalled], ["mock", true]);
    assert.ok((steps.slice(0, -1) as Progress[]).every(({ stage }) => typeof stage === "string"));
    assert.deepEqual(await install, result);
    assert.deepEqual((await all(install)).at(-1), result);
  });

  test("an install can be awaited alone", BOUNDED, async () => {
    assert.equal((await client.agents.install("mock", { reinstall: false })).alreadyInstalled, true);
  });

  test("an install that fails is a ServerProblem, for the loop and for who awaits", BOUNDED, async () => {
    const install = client.agents.install("cluade");

    await assert.rejects(all(install), (error) => error instanceof ServerProblem && error.slug === "unknown-agent");
    await assert.rejects(async () => await install, ServerProblem);
  });

  test("nobody has to look at an install that fails", BOUNDED, async () => {
    client.agents.install("cluade");

    assert.equal((await client.health()).status, "ok");
  });
});
