/** A server that only pretends: it says what a test tells it to, when the test tells it to. */

import { type IncomingMessage, type Server, type ServerResponse, createServer } from "node:http";
import type { AddressInfo } from "node:net";

/** A request of JSON-RPC as it came, and how to answer it. */
export interface Posted {
  readonly envelope: { id?: unknown; method?: string; params?: Record<string, unknown> };
  readonly headers: IncomingMessage["headers"];
  /** Answers with a result, after an event of the stream. */
  answer(result: unknown, lastEvent?: number): void;
  /** Answers with a status, and a problem by its slug. */
  refuse(status: number, slug?: string): void;
  /** 202. */
  accept(): void;
}

/** A sandbox-agent that does as told. */
export class Pretender {
  url = "";
  /** How many connections were opened. */
  opened = 0;
  /** The `Last-Event-ID` of each stream. */
  readonly resumed: (string | undefined)[] = [];
  /** Called with each POST that is not `initialize`. */
  onPost: (posted: Posted) => void = (posted) => posted.answer({});
  /** Called for each GET; false refuses it as unknown. */
  onStream: () => boolean = () => true;
  #stream: ServerResponse | undefined;
  readonly #server: Server;

  private constructor() {
    this.#server = createServer((request, response) => void this.#take(request, response));
  }

  static async open(): Promise<Pretender> {
    const pretender = new Pretender();
    await new Promise<void>((resolve) => pretender.#server.listen(0, "127.0.0.1", resolve));
    pretender.url = `http://127.0.0.1:${(pretender.#server.address() as AddressInfo).port}`;
    return pretender;
  }

  /** Whether a stream is open. */
  get streaming(): boolean {
    return this.#stream !== undefined;
  }

  /** Sends an event. */
  say(id: number, envelope: object): void {
    this.#stream?.write(`event: message\nid: ${id}\ndata: ${JSON.stringify({ jsonrpc: "2.0", ...envelope })}\n\n`);
  }

  /** Ends the stream. */
  endStream(): void {
    this.#stream?.end();
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async #take(request: IncomingMessage, response: ServerResponse): Promise<void> {
    response.on("error", () => undefined);
    if (request.url === "/v1/health")
      return void json(response, 200, { status: "ok", version: "0", uptimeMs: 0, agents: [] });
    if (request.method === "DELETE") return void response.writeHead(204).end();
    if (request.method === "GET") return this.#follow(request, response);
    const pieces: Buffer[] = [];
    for await (const piece of request) pieces.push(piece as Buffer);
    const envelope = JSON.parse(Buffer.concat(pieces).toString()) as Posted["envelope"];
    if (envelope.method === "initialize") {
      this.opened += 1;
      const headers = { "X-ACP-Connection-Id": `connection-${this.opened}`, "X-ACP-Last-Event-Id": "0" };
      return void json(response, 200, { jsonrpc: "2.0", id: envelope.id, result: { protocolVersion: 1 } }, headers);
    }
    this.onPost({
      envelope,
      headers: request.headers,
      answer: (result, lastEvent = 0) => {
        json(response, 200, { jsonrpc: "2.0", id: envelope.id, result }, { "X-ACP-Last-Event-Id": String(lastEvent) });
      },
      refuse: (status, slug) => refuse(response, status, slug),
      accept: () => void response.writeHead(202, { "Preference-Applied": "respond-async" }).end(),
    });
  }

  #follow(request: IncomingMessage, response: ServerResponse): void {
    this.resumed.push(request.headers["last-event-id"] as string | undefined);
    if (!this.onStream()) return void refuse(response, 404, "unknown-connection");
    response.writeHead(200, { "content-type": "text/event-stream" }).write(": open\n\n");
    this.#stream = response;
    response.on("close", () => {
      if (this.#stream === response) this.#stream = undefined;
    });
  }
}

function json(response: ServerResponse, status: number, value: unknown, headers: Record<string, string> = {}): void {
  response.writeHead(status, { "content-type": "application/json", ...headers }).end(JSON.stringify(value));
}

function refuse(response: ServerResponse, status: number, slug?: string): void {
  if (slug === undefined) return void response.writeHead(status, { "content-type": "text/html" }).end("<p>a proxy</p>");
  response.writeHead(status, { "content-type": "application/problem+json" });
  response.end(JSON.stringify({ type: `urn:sandbox-agent:error:${slug}`, title: slug, status, detail: "pretended" }));
}
