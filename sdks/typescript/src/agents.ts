/** The agents of a server: list, describe and install them. */

import type { AgentCapabilities, Implementation, SessionConfigOption, SessionMode } from "@agentclientprotocol/sdk";

import { ConnectionLost, foreign, problemIn } from "./errors.js";
import type { Where } from "./fleet.js";
import type { Http } from "./http.js";
import { eventsOf } from "./sse.js";

/** The progress of an install. */
export interface Progress {
  /** The current step. */
  readonly stage: "waiting" | "resolving" | "fetching" | "unpacking" | "verifying" | "done" | (string & {});
  /** The same for people, with names. */
  readonly message: string;
  /** The downloaded bytes. */
  readonly bytes?: number;
  /** The size of the download. */
  readonly totalBytes?: number;
}

/** One program that an agent needs. */
export interface Artifact {
  /** `agent_process` speaks ACP, `native` is the agent behind it, `binary` is the program that a script starts. */
  readonly kind: "agent_process" | "native" | "binary" | (string & {});
  /** The name of the package that has the program, or of the program. */
  readonly name: string;
  /** The version of the program; `null` if it is not known. */
  readonly version: string | null;
  /** `version` is what the registry or another package says of the program, not what its own package says. */
  readonly versionInferred?: boolean;
  /** The version of the package, if it is not that of the program. */
  readonly packageVersion?: string;
  /** Its path. */
  readonly path: string | null;
  /** Its source. */
  readonly source: string;
  /** Its checksum. */
  readonly sha256?: string;
  /** The hash that npm checked the package against. */
  readonly integrity?: string;
  /** There was no hash to check it against. */
  readonly unverified?: boolean;
}

/** The result of an install. */
export interface InstallResult {
  /** The agent's id. */
  readonly agent: string;
  /** It was already installed, and nothing was downloaded. */
  readonly alreadyInstalled: boolean;
  /** Of the program that speaks ACP. */
  readonly version: string | null;
  /** Of the agent behind it, where that is another program. */
  readonly nativeVersion?: string;
  /** Where it comes from, as in `InstallInfo`. */
  readonly source: string;
  /** It was started and completed the handshake. */
  readonly verified: boolean;
  /** The programs that were installed. */
  readonly artifacts: readonly Artifact[];
}

/** The source of an agent. */
export interface InstallInfo {
  /** Bundled with the server, a path that you gave, the ACP registry, or a version that the server pins. */
  readonly source: "bundled" | "path" | "registry" | "fallback" | (string & {});
  /** It does not come from the ACP registry. */
  readonly nonRegistry: boolean;
  /** Where it comes from is only expected, because it is not installed. An install may choose otherwise. */
  readonly expected: boolean;
  /** It answered a handshake when it was installed, or runs now. */
  readonly verified: boolean;
  /** When it answered. */
  readonly verifiedAt?: string;
  /** Why the last install failed. */
  readonly verificationError?: string;
  /** The programs that it consists of. */
  readonly artifacts: readonly Artifact[];
  /** Its name in the ACP registry. */
  readonly registrySlug?: string;
  /** The package it comes from, or would. */
  readonly package?: string;
  /** Its path. */
  readonly folder?: string;
  /** When it was installed. */
  readonly installedAt?: string;
  /** The platform that it is for. */
  readonly platform?: string;
  /** The version of Node that it runs on. */
  readonly node?: string;
  /** Further notes. */
  readonly note?: string;
  /** While it is being installed. */
  readonly progress?: Progress;
}

/** A credential an agent can use to reach a model; never its value. */
export interface Credential {
  /** Its kind. */
  readonly kind: "variable" | "file" | (string & {});
  /** The name of the variable, or the path. */
  readonly name: string;
  /** Whether it is there. Its value is not checked. */
  readonly found: boolean;
}

/** The state of an agent's shared process. */
export interface ServerStatus {
  /** Its current state. */
  readonly status: "stopped" | "installing" | "starting" | "running" | "error" | (string & {});
  /** The number of times that it has ended. */
  readonly restartCount: number;
  /** Its process id, while it runs. */
  readonly pid?: number;
  /** The time since its start. */
  readonly uptimeMs?: number;
  /** The last error. */
  readonly lastError?: string;
}

/** Features to know before you choose an agent. */
export interface Features {
  /** When it asks: always, in some of its modes, as configured, or never. */
  readonly permissions: "always" | "mode" | "configured" | "never" | (string & {});
  /** How its questions arrive. */
  readonly questions: "form" | "extension" | "none" | (string & {});
  /** The attachments that it gets as links. All others are described in the text. */
  readonly attachments?: "link" | "file-link" | "text-link" | "text" | (string & {});
  /** The form of paths in links. */
  readonly uris?: "encoded" | "plain" | (string & {});
  /** Whether it gets images. */
  readonly images?: boolean;
  /** Whether one prompt may contain both images and links. */
  readonly mixes?: boolean;
}

/** A model that an agent offers. */
export interface Model {
  /** Its id, which you use to choose it. */
  readonly modelId: string;
  /** For people. */
  readonly name: string;
  /** Its description. */
  readonly description?: string | null;
}

/** The models of a session or an agent, and the one in use. */
export interface Models {
  /** The available ones. */
  readonly availableModels: readonly Model[];
  /** The one in use, if the agent reports it. */
  readonly currentModelId: string | null;
}

/** The modes of a session or an agent, and the one it is in. */
export interface Modes {
  /** The available ones. */
  readonly availableModes: readonly SessionMode[];
  /** The current one, if the agent reports it. */
  readonly currentModeId: string | null;
}

/** An agent's state at the time of the call. */
export interface Agent {
  /** Its id. */
  readonly id: string;
  /** Its name for people. */
  readonly title: string;
  /** Its description. */
  readonly description: string;
  /** Whether it is supported on this machine. */
  readonly supported: boolean;
  /** The reason if it is not. */
  readonly unsupportedReason?: string;
  /** Whether it could be started now. */
  readonly installed: boolean;
  /** Of the program that speaks ACP. */
  readonly version?: string;
  /** Of the agent behind it, where that is another program. */
  readonly nativeVersion?: string;
  /** The program that would be started. */
  readonly path?: string;
  /** One of its credentials is there, or it needs none. */
  readonly credentialsAvailable: boolean;
  /** The credentials that it can use to reach a model. */
  readonly credentials: readonly Credential[];
  /** Its source. */
  readonly install: InstallInfo;
  /** How to install it and what it needs, for people. */
  readonly instructions: string;
  /** The capabilities that it advertised. */
  readonly capabilities: AgentCapabilities;
  /** How it describes itself. */
  readonly agentInfo?: Implementation;
  /** Features to know before you choose it. */
  readonly features?: Features;
  /** `agent`: all sessions share one process, and its crash ends the turns of all. `session`: each has its own. */
  readonly isolation: "agent" | "session" | (string & {});
  /** The state of its shared process. */
  readonly serverStatus: ServerStatus;
  /**
   * Whether its models, modes and options are known. `asking`: the server asks it at this moment. `unknown`: it was not
   * asked, or did not answer. `get(agent, { models: true })` waits for them.
   */
  readonly offers: "known" | "asking" | "unknown" | (string & {});
  /** The reason why it did not tell them when the server asked. */
  readonly offersError?: string;
  /** As in its newest session, else as it answered the server. Absent unless `offers` is `known`. */
  readonly models?: Models;
  /** Like `models`. */
  readonly modes?: Modes;
  /** Like `models`: all its options, with those for mode and model. */
  readonly configOptions?: readonly SessionConfigOption[];
}

/** The newest of what an agent's processes wrote to stderr. */
export interface Stderr {
  /** The text. */
  readonly text: string;
  /** Whether there is more before it. */
  readonly truncated: boolean;
}

/** A summary of one agent. */
export interface AgentHealth {
  /** Its id. */
  readonly agent: string;
  /** Whether it could be started now. */
  readonly installed: boolean;
  /** Whether its shared process runs. */
  readonly running: boolean;
}

/** The server's health. */
export interface Health {
  /** `degraded` while the log of the sessions cannot be written. */
  readonly status: "ok" | "degraded" | (string & {});
  /** Its version. */
  readonly version: string;
  /** The time since its start. */
  readonly uptimeMs: number;
  /** Summaries of its agents. */
  readonly agents: readonly AgentHealth[];
  /** Why it is degraded. */
  readonly detail?: string;
  /** Of a gateway: its name. */
  readonly gateway?: string;
  /** Of a gateway: how many nodes are there. */
  readonly nodes?: number;
}

/** The version of an agent to install. */
export interface InstallOptions {
  /** Download it again, also if it is installed. */
  readonly reinstall?: boolean;
  /** The version of the agent itself. */
  readonly agentVersion?: string;
  /** The version of the program that speaks ACP for it. */
  readonly agentProcessVersion?: string;
}

/**
 * An install that has begun: iterate over its progress, of which the last is the result, or `await` the result.
 *
 * If you leave early, it continues on the server; another install of the same agent joins it.
 */
export class Install implements AsyncIterable<Progress | InstallResult>, PromiseLike<InstallResult> {
  /** Which agent it is. */
  readonly agent: string;
  readonly #steps: (Progress | InstallResult)[] = [];
  readonly #result: Promise<InstallResult>;
  #ended = false;
  #told: (() => void)[] = [];

  /** @internal */
  constructor(http: Http, agent: string, options: InstallOptions, where: Where) {
    this.agent = agent;
    this.#result = this.#run(http, options, where).finally(() => {
      this.#ended = true;
      this.#tell();
    });
    this.#result.catch(() => undefined);
  }

  /** Awaiting an install returns its result, and rejects with a ServerProblem. */
  then<T = InstallResult, E = never>(
    fulfilled?: ((result: InstallResult) => T | PromiseLike<T>) | null,
    rejected?: ((reason: unknown) => E | PromiseLike<E>) | null,
  ): Promise<T | E> {
    return this.#result.then(fulfilled, rejected);
  }

  /** The steps from the beginning; the last one is the result. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Progress | InstallResult, void, undefined> {
    for (let index = 0; ; index += 1) {
      while (index >= this.#steps.length && !this.#ended) {
        await new Promise<void>((resolve) => this.#told.push(resolve));
      }
      const step = this.#steps[index];
      if (step === undefined) break;
      yield step;
    }
    yield await this.#result;
  }

  async #run(http: Http, options: InstallOptions, where: Where): Promise<InstallResult> {
    const headers = { Accept: "text/event-stream", "Content-Type": "application/json" };
    const path = `/v1/agents/${encodeURIComponent(this.agent)}/install`;
    const response = await http.send("POST", path, { query: where, headers, body: JSON.stringify(options) });
    try {
      for await (const events of eventsOf(http.body(response))) {
        for (const { event, data } of events) {
          if (event === "result") return JSON.parse(data) as InstallResult;
          if (event === "problem") throw problemIn(data) ?? foreign(http.url, response.status, "event", data);
          if (event === "progress") this.#steps.push(JSON.parse(data) as Progress);
        }
        this.#tell();
      }
    } catch (error) {
      throw http.lost(error);
    }
    throw new ConnectionLost(
      `${http.url} ended its answer before the install of ${this.agent} had ended; it may go on`,
      {
        outcomeUnknown: true,
      },
    );
  }

  #tell(): void {
    for (const tell of this.#told.splice(0)) tell();
  }
}

/** The agents of a server. */
export class Agents {
  readonly #http: Http;
  readonly #where: Where;

  /** @internal */
  constructor(http: Http, where: Where = {}) {
    this.#http = http;
    this.#where = where;
  }

  /** The agents of one node of a fleet; a gateway has to know which one when there are several. */
  ofNode(node: string): Agents {
    return new Agents(this.#http, { node });
  }

  /** The agents the server knows; with `registry`, also those in the ACP registry that are not installed. */
  async list(options: { registry?: boolean } = {}): Promise<Agent[]> {
    const query = { registry: options.registry || undefined, ...this.#where };
    return (await this.#http.read<{ agents: Agent[] }>("/v1/agents", query)).agents;
  }

  /**
   * One agent, by its id or its slug in the registry.
   *
   * With `models`, the server asks the agent for its models and modes if they are not known: once for each version, in
   * a session that is not kept.
   *
   * @throws ServerProblem when the agent cannot say (`agent-not-installed`, `offers-unknown` and others).
   */
  async get(agent: string, options: { models?: boolean } = {}): Promise<Agent> {
    const query = { models: options.models || undefined, ...this.#where };
    return await this.#http.read<Agent>(`/v1/agents/${encodeURIComponent(agent)}`, query);
  }

  /** The models that an agent offers, also before its first session; see `get`. */
  async models(agent: string): Promise<Models> {
    return (await this.get(agent, { models: true })).models ?? { availableModels: [], currentModelId: null };
  }

  /** The newest of what an agent's processes wrote to stderr; empty when they wrote nothing. */
  async stderr(agent: string): Promise<Stderr> {
    return await this.#http.read<Stderr>(`/v1/agents/${encodeURIComponent(agent)}/stderr`, this.#where);
  }

  /** Installs an agent on the server: `await` it, or iterate over its progress. */
  install(agent: string, options: InstallOptions = {}): Install {
    return new Install(this.#http, agent, options, this.#where);
  }
}
