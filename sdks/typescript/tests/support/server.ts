/** A real server in a process of its own, as tests/support/running.py has it for Python. */

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { openSync, closeSync } from "node:fs";

import { type ConnectOptions, SandboxAgent } from "sandboxagent";

import { quiet } from "./logger.js";
import { BOUND, within } from "./waiting.js";

/** The Python that has the server, and the scripted agent; given by pytest. */
export const PYTHON: string = given("SANDBOX_AGENT_TEST_PYTHON");
/** A command that is `sandbox-agent`, forked from a process that has imported it; SIGUSR1 is its SIGKILL. */
const PROGRAM = JSON.parse(given("SANDBOX_AGENT_TEST_PROGRAM")) as [string, ...string[]];
const SCRIPTED = given("SANDBOX_AGENT_TEST_SCRIPTED");
export const TOKEN = "test-token";

/** The lines of agents.toml for a scripted agent with these flags. */
export function scripted(flags: string[] = [], keys: Record<string, string> = {}): string {
  const command = [PYTHON, "-I", "-S", SCRIPTED, ...flags];
  return [
    `command = ${JSON.stringify(command)}`,
    ...Object.entries(keys).map(([key, value]) => `${key} = ${JSON.stringify(value)}`),
  ].join("\n");
}

/** `sandbox-agent server` with directories of its own. */
export class TestServer {
  readonly directory: string = realpathSync(mkdtempSync(join(tmpdir(), "sdk-")));
  readonly work: string = join(this.directory, "work");
  url = "";
  #process: ChildProcess | undefined;
  readonly #flags: string[];
  readonly #agents: Record<string, string>;

  constructor(flags: string[] = [], agents: Record<string, string> = {}) {
    this.#flags = flags;
    this.#agents = { scripted: scripted(["--state", join(this.directory, "state")]), ...agents };
    mkdirSync(this.work);
    mkdirSync(join(this.directory, "config"));
  }

  static async start(flags: string[] = [], agents: Record<string, string> = {}): Promise<TestServer> {
    return await new TestServer(flags, agents).start();
  }

  get stderr(): string {
    return readFileSync(join(this.directory, "stderr"), "utf8");
  }

  /** The environment of servers here: nothing of the user's, and no network. */
  get environment(): Record<string, string> {
    const registry = join(this.directory, "registry.json");
    writeFileSync(registry, '{"version": "1.0.0", "agents": []}');
    const clean = Object.entries(process.env).filter(([name]) => !name.startsWith("SANDBOX_AGENT_"));
    return {
      ...(Object.fromEntries(clean) as Record<string, string>),
      MOCK_AGENT_STATE_DIR: join(this.directory, "mock"),
      XDG_STATE_HOME: join(this.directory, "state-home"),
      XDG_DATA_HOME: join(this.directory, "share"),
      SANDBOX_AGENT_ACP_REGISTRY_URL: registry,
    };
  }

  /** Writes agents.toml; gives the folder. */
  configured(): string {
    const config = join(this.directory, "config");
    const tables = Object.entries(this.#agents).map(([id, lines]) => `[agents.${id}]\n${lines}\n`);
    writeFileSync(join(config, "agents.toml"), tables.join(""));
    return config;
  }

  async start(port = 0): Promise<this> {
    const places = ["--data-dir", join(this.directory, "data"), "--config-dir", this.configured()];
    const [standIn, ...its] = PROGRAM;
    const command = [...its, "server", "--port", String(port), "--token", TOKEN, ...places, ...this.#flags];
    const stderr = openSync(join(this.directory, "stderr"), "a");
    const child = spawn(standIn, command, { stdio: ["ignore", "pipe", stderr], env: this.environment });
    closeSync(stderr);
    this.#process = child;
    const [line] = (await within(once(createInterface(child.stdout!), "line"), "the server")) as [string];
    assert.match(line, /^sandbox-agent listening on /, this.stderr);
    this.url = line.split(" ").at(-1)!;
    return this;
  }

  /** Ends it as a crash would, or as told. */
  async stop(signal: NodeJS.Signals = "SIGTERM"): Promise<void> {
    const child = this.#process;
    this.#process = undefined;
    if (child === undefined || child.exitCode !== null) return;
    const exited = once(child, "exit");
    child.kill(signal === "SIGKILL" ? "SIGUSR1" : signal);
    await within(exited, "the end of the server");
    child.stdout?.destroy();
  }

  /** Ends it, and starts it on the same port and data. */
  async restart(signal: NodeJS.Signals = "SIGTERM"): Promise<void> {
    const port = Number(new URL(this.url).port);
    await this.stop(signal);
    await this.start(port);
  }

  async connect(options: ConnectOptions & { url?: string } = {}): Promise<SandboxAgent> {
    return await SandboxAgent.connect(options.url ?? this.url, {
      token: TOKEN,
      agent: "scripted",
      logger: quiet,
      reconnectTimeout: BOUND,
      ...options,
    });
  }

  async close(): Promise<void> {
    await this.stop();
    const { stderr } = this;
    rmSync(this.directory, { recursive: true, force: true, maxRetries: 5 });
    assert.ok(!stderr.includes("Traceback"), stderr);
  }
}

/** Whether a process is there, and not a zombie. */
export function alive(pid: number): boolean {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    return stat.slice(stat.lastIndexOf(")") + 2)[0] !== "Z";
  } catch {
    return false;
  }
}

/** The params of a request for a permission that an agent makes. */
export const PERMISSION = {
  toolCall: { toolCallId: "c-1" },
  options: [
    { optionId: "yes", name: "Yes", kind: "allow_once" },
    { optionId: "no", name: "No", kind: "reject_once" },
  ],
};

/** A program for the scripted agent. */
export function program(...steps: unknown[][]): string {
  return JSON.stringify(steps);
}

function given(name: string): string {
  const value = process.env[name];
  assert.ok(value, `${name} is not set: run this by pytest tests/sdk_typescript`);
  return value;
}

export { BOUND };
