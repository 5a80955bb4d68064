/** Files of the server's machine. */

import assert from "node:assert/strict";
import { createReadStream, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Readable } from "node:stream";
import { after, before, describe, test } from "node:test";
import { gunzipSync } from "node:zlib";

import { type SandboxAgent, ServerProblem, type Session } from "sandboxagent";

import { TestServer } from "./support/server.js";
import { all, until, within } from "./support/waiting.js";

const BOUNDED = { timeout: 180_000 };

describe("files", () => {
  let server: TestServer;
  let client: SandboxAgent;
  let session: Session;

  before(async () => {
    server = await TestServer.start();
    client = await server.connect();
    session = await client.sessions.create({ cwd: server.work });
  });

  after(async () => {
    await client.close();
    await server.close();
  });

  test("what is written can be read, whole or in part", BOUNDED, async () => {
    const written = await session.files.write("a/b/notes.txt", "Hällo, wörld");

    assert.equal(written.path, join(server.work, "a/b/notes.txt"));
    assert.equal(written.bytesWritten, 14);
    assert.equal(await session.files.readText("a/b/notes.txt"), "Hällo, wörld");
    assert.equal(readFileSync(written.path, "utf8"), "Hällo, wörld");
    assert.deepEqual([...(await client.files.read(written.path, { start: 8, end: 10 }))], [0x77, 0xc3]);
    assert.equal((await client.files.read(written.path, { start: 8 })).length, 6);
    await assert.rejects(client.files.read(written.path, { start: 5, end: 5 }), /no bytes/);
  });

  test("bytes of any kind are written as they come", BOUNDED, async () => {
    const bytes = new Uint8Array(300_000).map((_, index) => index % 251);
    async function* pieces(): AsyncGenerator<Uint8Array> {
      for (let start = 0; start < bytes.length; start += 70_000) yield bytes.subarray(start, start + 70_000);
    }
    const whole = join(server.work, "whole.bin");
    writeFileSync(whole, bytes);
    const ways = {
      bytes,
      blob: new Blob([bytes]),
      stream: new Blob([bytes]).stream(),
      pieces: pieces(),
      node: Readable.toWeb(createReadStream(whole)) as ReadableStream<Uint8Array>,
    };

    for (const [name, data] of Object.entries(ways)) {
      assert.equal((await session.files.write(`${name}.bin`, data)).bytesWritten, bytes.length);
      assert.deepEqual(await session.files.read(`${name}.bin`), bytes, name);
    }
    assert.deepEqual(Buffer.concat(await all(session.files.stream("bytes.bin"))), Buffer.from(bytes));
  });

  test("a file is written only as it was, or only when it is new", BOUNDED, async () => {
    const first = await session.files.write("kept.txt", "1", { ifNoneMatch: "*" });
    const changed = (error: unknown): boolean =>
      error instanceof ServerProblem && error.slug === "file-changed" && error.status === 412;

    await assert.rejects(session.files.write("kept.txt", "2", { ifNoneMatch: "*" }), changed);
    const second = await session.files.write("kept.txt", "three", { ifMatch: first.etag });
    await assert.rejects(session.files.write("kept.txt", "4", { ifMatch: first.etag }), changed);

    assert.equal((await session.files.stat("kept.txt")).etag, second.etag);
  });

  test("directories are made, listed, moved and deleted", BOUNDED, async () => {
    const path = await session.files.mkdir("tree/of/things");
    await session.files.write("tree/of/b.txt", "b");
    await session.files.write("tree/of/a.txt", "a");

    const entries = await all(session.files.list("tree/of"));

    assert.equal(path, join(server.work, "tree/of/things"));
    assert.deepEqual(
      entries.map((entry) => [entry.name, entry.entryType]),
      [
        ["a.txt", "file"],
        ["b.txt", "file"],
        ["things", "directory"],
      ],
    );
    assert.equal(await session.files.move("tree/of/a.txt", "tree/c.txt"), join(server.work, "tree/c.txt"));
    await assert.rejects(session.files.move("tree/of/b.txt", "tree/c.txt"), ServerProblem);
    await session.files.move("tree/of/b.txt", "tree/c.txt", { overwrite: true });
    await assert.rejects(
      session.files.delete("tree"),
      (error) => error instanceof ServerProblem && error.slug === "file-conflict",
    );
    await session.files.delete("tree", { recursive: true });
    await assert.rejects(
      session.files.stat("tree"),
      (error) => error instanceof ServerProblem && error.slug === "file-not-found",
    );
  });

  test("names with every kind of letter are names", BOUNDED, async () => {
    const name = "a b&c=d+e%20?#ü🌍.txt";

    await session.files.write(name, "x");

    assert.equal((await session.files.stat(name)).name, name);
    assert.equal(await session.files.readText(name), "x");
  });

  test("a directory goes out as an archive and comes back in", BOUNDED, async () => {
    await session.files.write("packed/one.txt", "1");
    await session.files.write("packed/in/two.txt", "2");

    const archive = Buffer.concat(await all(session.files.downloadArchive("packed", { format: "tar.gz" })));
    const uploaded = await session.files.uploadArchive("unpacked", archive);

    assert.ok(gunzipSync(archive).length > 0);
    assert.deepEqual([...uploaded.paths].sort(), [
      join(server.work, "unpacked/in/two.txt"),
      join(server.work, "unpacked/one.txt"),
    ]);
    assert.equal(await session.files.readText("unpacked/in/two.txt"), "2");
    await assert.rejects(
      session.files.uploadArchive("unpacked", archive.subarray(0, 40)),
      (error) => error instanceof ServerProblem && error.slug === "bad-archive",
    );
  });

  test("a search finds lines and files, and says when there is more", BOUNDED, async () => {
    await session.files.write("searched/a.py", "import sys\n# TODO: one\n");
    await session.files.write("searched/b.py", "# TODO: two\n");

    const search = session.files.search("searched", { text: "TODO", name: "*.py" });
    const matches = await all(search);

    assert.deepEqual(matches.map((match) => match.text).sort(), ["# TODO: one", "# TODO: two"]);
    assert.equal(search.truncated, false);
    const limited = session.files.search("searched", { name: ".py", limit: 1 });
    assert.equal((await all(limited)).length, 1);
    assert.deepEqual([limited.truncated, limited.reason], [true, "results"]);
    await assert.rejects(all(session.files.search("searched", { text: "(", regex: true })), ServerProblem);
  });

  test("a watch tells of changes from when it is ready", BOUNDED, async () => {
    await session.files.mkdir("watched");
    const watch = session.files.watch("watched");
    await watch.ready;

    await session.files.write("watched/new.txt", "x");

    const change = await until(watch, ({ path }) => path.endsWith("new.txt"));
    assert.equal(change.kind, "added");
    await session.files.delete("watched", { recursive: true });
    await within(all(watch));
    assert.equal(watch.ended, "gone");
  });

  test("a watch can be left while somebody waits", BOUNDED, async () => {
    const watch = session.files.watch(".");
    await watch.ready;
    const waiting = watch.next();

    await within(watch.return());

    assert.equal((await within(waiting)).done, true);
    await assert.rejects(within(session.files.watch("nowhere").next()), ServerProblem);
  });

  test("a watch outlives a restart of the server, and says that something may be missing", BOUNDED, async () => {
    await session.files.mkdir("rewatched");
    const watch = session.files.watch("rewatched");
    await watch.ready;

    await server.restart();

    assert.equal((await within(watch.next())).value?.kind, "overflow");
    await client.files.write(join(server.work, "rewatched/new.txt"), "x");
    assert.equal((await until(watch, ({ kind }) => kind === "added")).kind, "added");
    await watch.return();
    rmSync(join(server.work, "rewatched"), { recursive: true });
  });
});
