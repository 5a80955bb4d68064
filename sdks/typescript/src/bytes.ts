/** Bodies in pieces, of requests and of responses. */

import { isNode } from "./environment.js";
import type { Http } from "./http.js";

/** Content that can be sent as a file. A text is sent as UTF-8. */
export type Data = string | Uint8Array | Blob | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>;

/** Data as `fetch` takes it. */
export async function sendable(data: Data): Promise<string | Uint8Array | Blob | ReadableStream<Uint8Array>> {
  if (typeof data === "string" || data instanceof Uint8Array || data instanceof Blob) return data;
  const stream = data instanceof ReadableStream ? data : streamed(data);
  // Browsers send no streams over HTTP/1.1.
  return isNode() ? stream : await new Response(stream).blob();
}

/** A body as it arrives. Leaving the loop drops the rest. */
export async function* piecesOf(http: Http, response: Response): AsyncGenerator<Uint8Array, void, undefined> {
  const reader = http.body(response).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } catch (error) {
    throw http.lost(error, undefined, true);
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

/** A body line by line. Each byte is examined once, for any number of pieces. */
export async function* linesOf(http: Http, response: Response): AsyncGenerator<string, void, undefined> {
  const decoder = new TextDecoder();
  let begun: string[] = [];
  for await (const piece of piecesOf(http, response)) {
    const [first, ...rest] = decoder.decode(piece, { stream: true }).split("\n");
    begun.push(first as string);
    for (const next of rest) {
      yield begun.join("");
      begun = [next];
    }
  }
}

function streamed(pieces: AsyncIterable<Uint8Array>): ReadableStream<Uint8Array> {
  const iterator = pieces[Symbol.asyncIterator]();
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      const { done, value } = await iterator.next();
      if (done) controller.close();
      else controller.enqueue(value);
    },
    async cancel(reason) {
      await iterator.return?.(reason);
    },
  });
}
