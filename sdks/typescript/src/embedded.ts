/**
 * A private server in a child process, which ends when this process ends, however that happens. Needs Node.
 *
 * Knows how to start and end it, and nothing of how to call it.
 */

import type { ChildProcessByStdio } from "node:child_process";
import type { Readable, Writable } from "node:stream";

import { NEEDS_NODE } from "./embedded-browser.js";
import { isNode } from "./environment.js";
import { ConnectionLost, InvalidCall, StartFailed } from "./errors.js";
import { randomName } from "./http.js";
import type { Logger } from "./log.js";

const READY = "sandbox-agent listening on ";
/** Milliseconds to be ready; to end with its stdin; to end after SIGTERM. */
const START_TIMEOUT = 30_000;
const STOP_TIMEOUT = 5_000;
const TERM_TIMEOUT = 2_000;
/** Characters that are kept of the end of stderr, and of a first line that does not end. */
const TAIL = 16_384;
/** The server's flags that start() sets itself. */
const OURS = new Set(["embedded", "data-dir", "token", "token-file", "no-token"]);

/** Options of a private server. */
export interface EmbeddedOptions {
  /** How to run `sandbox-agent`; else `SANDBOX_AGENT_BIN` of the environment, else `sandbox-agent` on the PATH. */
  readonly command?: readonly string[];
  /** The directory that keeps the sessions; without it, they are deleted when the server stops. */
  readonly dataDir?: string;
  /** Flags of `sandbox-agent server` by name: `true` is a switch, a list is a flag for each item. */
  readonly options?: Readonly<Record<string, string | number | boolean | readonly (string | number)[] | undefined>>;
  /** Environment variables for the server, in addition to those of this process. */
  readonly env?: Readonly<Record<string, string>>;
}

/** A server that runs. */
export interface EmbeddedServer {
  readonly url: string;
  readonly token: string;
  readonly pid: number;
  /** Resolves when the server ends by itself. */
  readonly ended: Promise<ConnectionLost>;
  /** Ends it, and waits until it is gone. */
  close(): Promise<void>;
}

/** Starts a server on a free port, with a secret token, and waits until it is ready. */
export async function startServer(options: EmbeddedOptions, log: Logger): Promise<EmbeddedServer> {
  if (!isNode()) throw new InvalidCall(NEEDS_NODE);
  const { spawn } = await import("node:child_process");
  const [program, ...rest] = commandOf(options);
  const place = options.dataDir === undefined ? [] : [`--data-dir=${options.dataDir}`];
  const flags = [...rest, "server", "--embedded", "--port=0", ...place, ...flagsOf(options.options ?? {})];
  const token = options.env?.["SANDBOX_AGENT_TOKEN"] || randomName(32);
  // Every user of the machine can read a command line. An empty variable counts as unset.
  const others = { SANDBOX_AGENT_TOKEN_FILE: "", SANDBOX_AGENT_NO_TOKEN: "" };
  const env = { ...process.env, ...options.env, ...others, SANDBOX_AGENT_TOKEN: token };
  // A session of its own: what Ctrl-C sends to us must not end it before we have.
  const child = spawn(program, flags, { env, stdio: ["pipe", "pipe", "pipe"], detached: true });
  const server = new Server(child, program, log);
  try {
    return server.at(reachable(await server.ready()), token);
  } catch (error) {
    await server.close();
    throw error;
  }
}

class Server {
  readonly #child: ChildProcessByStdio<Writable, Readable, Readable>;
  readonly #program: string;
  /** It has ended, or has never begun. */
  readonly #exited: Promise<void>;
  #failure: Error | undefined;
  #ending: Promise<void> | undefined;
  #running = false;
  #stderr = "";

  constructor(child: ChildProcessByStdio<Writable, Readable, Readable>, program: string, log: Logger) {
    this.#child = child;
    this.#program = program;
    this.#exited = new Promise((resolve) => {
      child.once("error", (error) => {
        this.#failure = error;
        resolve();
      });
      child.once("close", () => {
        if (this.#running && this.#ending === undefined) log.warn(`sandbox-agent: the embedded server ${this.#how()}`);
        resolve();
      });
    });
    // Read to the end, so that it never blocks on a full pipe.
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      this.#stderr = (this.#stderr + text).slice(-TAIL);
    });
    child.stdin.on("error", () => undefined);
  }

  at(url: string, token: string): EmbeddedServer {
    this.#running = true;
    // It must not keep a program alive that has nothing else to do; it ends with that program.
    this.#child.unref();
    for (const pipe of [this.#child.stdin, this.#child.stdout, this.#child.stderr]) {
      (pipe as { unref?: () => void }).unref?.();
    }
    const ended = new Promise<ConnectionLost>((resolve) => {
      void this.#exited.then(() => {
        if (this.#ending !== undefined) return;
        const said = this.#stderr.trimEnd();
        resolve(
          new ConnectionLost(`the private server ${this.#how()}${said && `\n${said}`}`, { outcomeUnknown: true }),
        );
      });
    });
    return { url, token, pid: this.#child.pid ?? 0, ended, close: () => this.close() };
  }

  /** Where it listens, once it does. */
  async ready(): Promise<string> {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => {
        reject(new StartFailed(`the server was not ready within ${START_TIMEOUT / 1000} seconds`, this.#stderr));
      }, START_TIMEOUT);
    });
    const over = this.#exited.then((): never => {
      if (this.#failure) throw new StartFailed(this.#notStarted(this.#failure), "", { cause: this.#failure });
      throw new StartFailed(`the server ${this.#how()} before it was ready`, this.#stderr);
    });
    over.catch(() => undefined);
    try {
      return await Promise.race([this.#line(), over, late]);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Its stdin ends first, which is all that a server needs; then it is ended by force. */
  async close(): Promise<void> {
    this.#ending ??= this.#end();
    await this.#ending;
  }

  async #end(): Promise<void> {
    this.#child.ref();
    this.#child.stdin.end();
    if (await this.#within(STOP_TIMEOUT)) return;
    this.#child.kill("SIGTERM");
    if (await this.#within(TERM_TIMEOUT)) return;
    this.#child.kill("SIGKILL");
    await this.#within(TERM_TIMEOUT);
  }

  async #within(milliseconds: number): Promise<boolean> {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<boolean>((resolve) => {
      timer = setTimeout(() => resolve(false), milliseconds);
    });
    try {
      return await Promise.race([this.#exited.then(() => true), late]);
    } finally {
      clearTimeout(timer);
    }
  }

  #line(): Promise<string> {
    let said = "";
    return new Promise((resolve, reject) => {
      const take = (text: string): void => {
        said += text;
        const end = said.indexOf("\n");
        if (end === -1 && said.length < TAIL) return;
        // From here on it is only read away.
        this.#child.stdout.off("data", take).resume();
        const line = end === -1 ? said : said.slice(0, end);
        if (line.startsWith(READY)) resolve(line.slice(READY.length).trim());
        else
          reject(
            new StartFailed(
              `${this.#program} is no sandbox-agent: it says ${JSON.stringify(line.slice(0, 200))}`,
              this.#stderr,
            ),
          );
      };
      this.#child.stdout.setEncoding("utf8").on("data", take);
    });
  }

  #how(): string {
    const { exitCode, signalCode } = this.#child;
    return signalCode === null ? `ended with exit code ${exitCode}` : `was ended by ${signalCode}`;
  }

  #notStarted(error: Error & { code?: string }): string {
    if (error.code !== "ENOENT") return `${this.#program} cannot be started: ${error.message}`;
    return (
      `${this.#program} was not found; install the Python package sandbox-agent, ` +
      `or say where it is: the option command, or the variable SANDBOX_AGENT_BIN`
    );
  }
}

function commandOf({ command }: EmbeddedOptions): [string, ...string[]] {
  const [program, ...rest] = command ?? [process.env["SANDBOX_AGENT_BIN"] || "sandbox-agent"];
  if (!program) throw new InvalidCall("command must name a program");
  return [program, ...rest];
}

/** Options as a command line has them. */
function flagsOf(options: NonNullable<EmbeddedOptions["options"]>): string[] {
  return Object.entries(options).flatMap(([key, value]) => {
    const name = key.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`).replaceAll("_", "-");
    if (OURS.has(name)) throw new InvalidCall(`${key} cannot be among the options: start() gives it to the server`);
    if (value === true) return [`--${name}`];
    if (value === undefined || value === false) return [];
    const items = typeof value === "object" ? value : [value];
    return items.map((item) => `--${name}=${item}`);
  });
}

/** An address for us, when the server listens on all of them. */
function reachable(url: string): string {
  return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:");
}
