/** The agents of a server: which there are, how they are, and installing them. */

import type { AgentCapabilities, Implementation, SessionMode } from "@agentclientprotocol/sdk";

import { ConnectionLost, foreign, problemIn } from "./errors.js";
import type { Http } from "./http.js";
import { eventsOf } from "./sse.js";

/** How far an install is. */
export interface Progress {
  readonly stage: "waiting" | "resolving" | "fetching" | "unpacking" | "verifying" | "done" | (string & {});
  readonly message: string;
  readonly bytes?: number;
  readonly totalBytes?: number;
}

/** One program that an agent needs. */
export interface Artifact {
  /** `agent_process`, which speaks ACP, or `native`, the agent behind it. */
  readonly kind: string;
  readonly name: string;
  readonly version?: string;
  readonly path?: string;
  readonly source?: string;
  readonly sha256?: string;
  /** What npm checked the package against. */
  readonly integrity?: string;
}

/** What an install did. */
export interface InstallResult {
  readonly agent: string;
  readonly alreadyInstalled: boolean;
  /** Of the program that speaks ACP. */
  readonly version?: string;
  /** Of the agent behind it, where that is another program. */
  readonly nativeVersion?: string;
  readonly source: string;
  /** It was started and shook hands. */
  readonly verified: boolean;
  readonly artifacts: readonly Artifact[];
}

/** Where an agent comes from. */
export interface InstallInfo {
  readonly source: "bundled" | "path" | "registry" | "fallback" | (string & {});
  readonly nonRegistry?: boolean;
  readonly verified: boolean;
  readonly verifiedAt?: string;
  /** Why the last install failed. */
  readonly verificationError?: string;
  readonly artifacts?: readonly Artifact[];
  readonly registrySlug?: string;
  readonly package?: string;
  readonly folder?: string;
  readonly installedAt?: string;
  readonly platform?: string;
  readonly node?: string;
  readonly note?: string;
  /** While it is being installed. */
  readonly progress?: Progress;
}

/** One thing that would let an agent reach a model; never its value. */
export interface Credential {
  readonly kind: "variable" | "file";
  readonly name: string;
  readonly found: boolean;
}

/** How an agent's shared process is doing. */
export interface ServerStatus {
  readonly status: "stopped" | "installing" | "starting" | "running" | "error" | (string & {});
  readonly restartCount: number;
  readonly pid?: number;
  readonly uptimeMs?: number;
  readonly lastError?: string;
}

/** What to know before choosing an agent. */
export interface Features {
  /** When it asks: `always`, in some of its modes (`mode`), as `configured`, or `never`. */
  readonly permissions: string;
  /** How its questions arrive: `form`, `extension` or `none`. */
  readonly questions: string;
  readonly attachments: string;
  readonly uris: string;
  readonly images: boolean;
  /** Whether a prompt may hold images and links at once. */
  readonly mixes: boolean;
}

/** The modes that an agent's newest session told of. */
export interface AgentModes {
  readonly availableModes: readonly SessionMode[];
  readonly currentModeId: string | null;
}

/** The models that an agent's newest session told of. */
export interface AgentModels {
  readonly availableModels: readonly { readonly modelId: string; readonly name: string; readonly description?: string | null }[];
  readonly currentModelId: string | null;
}

/** An agent, as the server has it at the moment of asking. */
export interface Agent {
  readonly id: string;
  readonly title: string;
  readonly description?: string;
  readonly supported: boolean;
  readonly unsupportedReason?: string;
  readonly installed: boolean;
  readonly version?: string;
  readonly nativeVersion?: string;
  readonly path?: string;
  /** One of its credentials is there, or it needs none. */
  readonly credentialsAvailable: boolean;
  readonly credentials?: readonly Credential[];
  readonly install: InstallInfo;
  /** How to install it and what it needs, for people. */
  readonly instructions: string;
  /** As it advertised them. */
  readonly capabilities?: AgentCapabilities;
  /** What it said of itself. */
  readonly agentInfo?: Implementation;
  readonly features?: Features;
  readonly serverStatus: ServerStatus;
  readonly models?: AgentModels;
  readonly modes?: AgentModes;
}

/** How the server is doing. */
export interface Health {
  /** `degraded` while the log of the sessions cannot be written. */
  readonly status: "ok" | "degraded" | (string & {});
  readonly version: string;
  readonly uptimeMs: number;
  readonly agents: readonly { readonly agent: string; readonly installed: boolean; readonly running: boolean }[];
  /** Why it is degraded. */
  readonly detail?: string;
}

/** Which version of an agent is wanted. */
export interface InstallOptions {
  /** Fetch it again, also when it is there. */
  readonly reinstall?: boolean;
  /** The version of the agent itself. */
  readonly agentVersion?: string;
  /** The version of the program that speaks ACP for it. */
  readonly agentProcessVersion?: string;
}

/**
 * An install that has begun: iterate over its progress, of which the last is the result, or `await` the result.
 *
 * Leaving early leaves it running on the server, and who asks for the same agent again joins it.
 */
export class Install implements AsyncIterable<Progress | InstallResult>, PromiseLike<InstallResult> {
  readonly agent: string;
  readonly #steps: (Progress | InstallResult)[] = [];
  readonly #result: Promise<InstallResult>;
  #ended = false;
  #told: (() => void)[] = [];

  /** @internal */
  constructor(http: Http, agent: string, options: InstallOptions) {
    this.agent = agent;
    this.#result = this.#run(http, options).finally(() => {
      this.#ended = true;
      this.#tell();
    });
    this.#result.catch(() => undefined);
  }

  /** Awaiting an install gives its result, and rejects with a ServerProblem. */
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

  async #run(http: Http, options: InstallOptions): Promise<InstallResult> {
    const headers = { Accept: "text/event-stream", "Content-Type": "application/json" };
    const path = `/v1/agents/${encodeURIComponent(this.agent)}/install`;
    const response = await http.send("POST", path, { headers, body: JSON.stringify(options) });
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
    throw new ConnectionLost(`${http.url} ended its answer before the install of ${this.agent} had ended; it may go on`, {
      outcomeUnknown: true,
    });
  }

  #tell(): void {
    for (const tell of this.#told.splice(0)) tell();
  }
}

/** The agents of a server. */
export class Agents {
  readonly #http: Http;

  /** @internal */
  constructor(http: Http) {
    this.#http = http;
  }

  /** Those that the server knows; with `registry`, also what the ACP registry has and nobody has installed. */
  async list(options: { registry?: boolean } = {}): Promise<Agent[]> {
    const query = { registry: options.registry || undefined };
    return (await this.#http.read<{ agents: Agent[] }>("/v1/agents", query)).agents;
  }

  /** One agent, by its id or its slug in the registry. */
  async get(agent: string): Promise<Agent> {
    return await this.#http.read<Agent>(`/v1/agents/${encodeURIComponent(agent)}`);
  }

  /** Has an agent installed on the server: `await` it, or iterate over its progress. */
  install(agent: string, options: InstallOptions = {}): Install {
    return new Install(this.#http, agent, options);
  }
}
