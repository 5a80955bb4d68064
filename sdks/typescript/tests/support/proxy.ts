/** A TCP proxy that can be told to behave like a bad network. */

import { type AddressInfo, type Server, type Socket, connect, createServer } from "node:net";

type Direction = "up" | "down";

/** Looks at what passes; true cuts both sockets, before these bytes are passed on. */
export type Judge = (data: Buffer, direction: Direction, passed: number) => boolean;

/** Between a client and a server. */
export class Proxy {
  url = "";
  /** How many connections there have been. */
  connections = 0;
  /** Take no connections, and have none. */
  #away = false;
  #judge: Judge = () => false;
  /** Sockets that take everything and pass nothing on. */
  readonly #mute = new WeakSet<Socket>();
  readonly #sockets = new Set<Socket>();
  readonly #server: Server;
  readonly #target: () => string;

  constructor(target: () => string) {
    this.#target = target;
    this.#server = createServer((socket) => this.#take(socket));
  }

  static async open(target: () => string): Promise<Proxy> {
    const proxy = new Proxy(target);
    await proxy.listen();
    return proxy;
  }

  async listen(): Promise<void> {
    await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    this.url = `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Cuts everything that is open now. */
  cut(): void {
    for (const socket of this.#sockets) socket.resetAndDestroy();
  }

  /** Everything that is open now stays open, and nothing comes through it any more. */
  silence(): void {
    for (const socket of this.#sockets) this.#mute.add(socket);
  }

  /** From now on nobody gets through. */
  leave(): void {
    this.#away = true;
    this.cut();
  }

  /** Somebody gets through again. */
  comeBack(): void {
    this.#away = false;
  }

  /** Cuts by what passes; nothing any more without a judge. */
  judge(judge: Judge = () => false): void {
    this.#judge = judge;
  }

  async close(): Promise<void> {
    this.leave();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  #take(client: Socket): void {
    this.connections += 1;
    if (this.#away) {
      client.resetAndDestroy();
      return;
    }
    const { hostname, port } = new URL(this.#target());
    const server = connect(Number(port), hostname);
    const ends: [Socket, Socket, Direction][] = [
      [client, server, "up"],
      [server, client, "down"],
    ];
    for (const [from, to, direction] of ends) {
      let passed = 0;
      from.setNoDelay(true);
      this.#sockets.add(from);
      from.on("error", () => undefined);
      from.on("close", () => {
        this.#sockets.delete(from);
        to.destroy();
      });
      from.on("data", (data) => {
        if (this.#mute.has(from)) return;
        if (this.#judge(data, direction, passed)) {
          client.resetAndDestroy();
          server.resetAndDestroy();
          return;
        }
        passed += data.length;
        to.write(data);
      });
    }
  }
}

/** Numbers that look random and come again: mulberry32. */
export function randomness(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let value = Math.imul(state ^ (state >>> 15), 1 | state);
    value = (value + Math.imul(value ^ (value >>> 7), 61 | value)) ^ value;
    return ((value ^ (value >>> 14)) >>> 0) / 4294967296;
  };
}
