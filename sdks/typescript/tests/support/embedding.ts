/** Servers of our own: what they need to be started in a test, and what they leave behind. */

import { mkdirSync, mkdtempSync, readFileSync, readdirSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import type { StartOptions } from "sandboxagent";

import { quiet } from "./logger.js";
import { PYTHON, scripted } from "./server.js";

/** A user's directories, and a place for what is temporary. */
export class Place {
  readonly directory: string = realpathSync(mkdtempSync(join(tmpdir(), "sdk-")));
  readonly temporary: string = join(this.directory, "tmp");
  readonly data: string = join(this.directory, "data");

  constructor() {
    const config = join(this.directory, "config");
    for (const folder of [config, this.temporary]) mkdirSync(folder);
    writeFileSync(
      join(config, "agents.toml"),
      `[agents.scripted]\n${scripted(["--state", join(this.directory, "state")])}\n`,
    );
    writeFileSync(join(this.directory, "registry.json"), '{"version": "1.0.0", "agents": []}');
  }

  /** What temporary directories are left. */
  get leftovers(): string[] {
    return readdirSync(this.temporary);
  }

  /** How to start a server here. */
  options(more: StartOptions = {}): StartOptions {
    const env = {
      TMPDIR: this.temporary,
      XDG_DATA_HOME: join(this.directory, "share"),
      XDG_STATE_HOME: join(this.directory, "state-home"),
      SANDBOX_AGENT_ACP_REGISTRY_URL: join(this.directory, "registry.json"),
      ...more.env,
    };
    const options = { configDir: join(this.directory, "config"), ...more.options };
    return { command: [PYTHON, "-m", "sandboxagent"], agent: "scripted", logger: quiet, ...more, env, options };
  }

  close(): void {
    rmSync(this.directory, { recursive: true, force: true, maxRetries: 5 });
  }
}

/** The processes that this one has started. */
export function children(pid: number = process.pid): number[] {
  try {
    const tasks = readdirSync(`/proc/${pid}/task`);
    const told = tasks.map((task) => readFileSync(`/proc/${pid}/task/${task}/children`, "utf8"));
    return told.join(" ").split(" ").filter(Boolean).map(Number);
  } catch {
    return [];
  }
}
