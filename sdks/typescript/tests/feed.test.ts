/** A feed gives each event once and in order, whatever comes live, falls out, and is read from the log. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Feed, type Page } from "../dist/feed.js";
import type { Heard } from "../dist/stream.js";
import { randomness } from "./support/proxy.js";
import { within } from "./support/waiting.js";

const BOUNDED = { timeout: 180_000 };

/** A log that is appended to, and read in pages. */
class Log {
  readonly events: Heard[] = [];
  readonly pageSize: number;
  reads = 0;
  failing = false;

  constructor(pageSize = 10) {
    this.pageSize = pageSize;
  }

  append(): Heard {
    const heard = { position: this.events.length + 1, method: "m", params: {}, size: 10 };
    this.events.push(heard);
    return heard;
  }

  readonly read = async (after: number): Promise<Page> => {
    this.reads += 1;
    await new Promise((resolve) => setImmediate(resolve));
    if (this.failing) throw new Error("no log");
    const rest = this.events.filter(({ position }) => position > after);
    const heard = rest.slice(0, this.pageSize);
    return { heard, upto: heard.at(-1)?.position ?? after, more: rest.length > heard.length };
  };
}

test("live events come as they are, without a look at the log", BOUNDED, async () => {
  const log = new Log();
  const feed = new Feed(1000, 0, log.read);
  feed.push(log.append());
  const second = log.append();

  assert.equal((await feed.next())?.position, 1);
  const waiting = feed.next();
  feed.push(second);

  assert.equal((await within(waiting))?.position, 2);
  assert.equal(log.reads, 0);
});

test("what does not fit is read from the log", BOUNDED, async () => {
  const log = new Log();
  const feed = new Feed(35, 0, log.read);
  for (let index = 0; index < 45; index += 1) feed.push(log.append());

  for (let position = 1; position <= 45; position += 1) assert.equal((await within(feed.next()))?.position, position);

  assert.equal(log.reads, 5);
  feed.push(log.append());
  assert.equal((await within(feed.next()))?.position, 46);
  assert.equal(log.reads, 5);
});

test("an event larger than the bound is given out all the same", BOUNDED, async () => {
  const log = new Log();
  const feed = new Feed(5, 0, log.read);

  feed.push(log.append());

  assert.equal((await within(feed.next()))?.position, 1);
});

test("a feed that is closed gives out what was before", BOUNDED, async () => {
  const log = new Log();
  const feed = new Feed(15, 0, log.read);
  for (let index = 0; index < 25; index += 1) feed.push(log.append());

  feed.close();

  for (let position = 1; position <= 25; position += 1) assert.equal((await within(feed.next()))?.position, position);
  assert.equal(await within(feed.next()), undefined);
});

test("a feed that is closed with a failure throws it at the end", BOUNDED, async () => {
  const log = new Log();
  const feed = new Feed(100, 0, log.read);
  feed.push(log.append());
  feed.close(new Error("over"));

  assert.equal((await feed.next())?.position, 1);
  await assert.rejects(feed.next(), /over/);
});

test("a feed that is dropped gives nothing any more, also to who waits", BOUNDED, async () => {
  const log = new Log();
  const feed = new Feed(100, 0, log.read);
  const waiting = feed.next();
  feed.drop();
  feed.push(log.append());

  assert.equal(await within(waiting), undefined);
  assert.equal(await within(feed.next()), undefined);
});

test("a log that cannot be read is a failure of the one who reads, and can be tried again", BOUNDED, async () => {
  const log = new Log();
  const feed = new Feed(15, 0, log.read);
  for (let index = 0; index < 5; index += 1) feed.push(log.append());
  assert.equal((await feed.next())?.position, 1);
  log.failing = true;
  await assert.rejects(feed.next(), /no log/);
  feed.push(log.append());

  log.failing = false;

  for (let position = 2; position <= 6; position += 1) assert.equal((await within(feed.next()))?.position, position);
});

test("a log that is gone ends with the last word", BOUNDED, async () => {
  const log = new Log();
  const feed = new Feed(15, 0, log.read);
  for (let index = 0; index < 5; index += 1) feed.push(log.append());
  log.failing = true;
  feed.fallBehind();

  feed.end({ position: 0, method: "ended", params: {}, size: 0 });

  assert.equal((await within(feed.next()))?.position, 1);
  assert.equal((await within(feed.next()))?.method, "ended");
  assert.equal(await within(feed.next()), undefined);
});

test("a feed that begins in the past reads it first", BOUNDED, async () => {
  const log = new Log();
  for (let index = 0; index < 25; index += 1) log.append();
  const feed = new Feed(1000, 5, log.read, true);

  for (let position = 6; position <= 25; position += 1) assert.equal((await within(feed.next()))?.position, position);
  feed.push(log.append());
  assert.equal((await within(feed.next()))?.position, 26);
});

test("whatever the order of events, reads and outages, each event comes once and in order", BOUNDED, async () => {
  for (let seed = 1; seed <= 300; seed += 1) {
    const random = randomness(seed);
    const log = new Log(1 + Math.floor(random() * 5));
    const feed = new Feed(Math.floor(random() * 60), 0, log.read);
    const seen: number[] = [];
    let over = false;
    const reading = (async () => {
      for (let heard = await feed.next(); heard !== undefined; heard = await feed.next()) {
        seen.push(heard.position);
        if (random() < 0.3) await new Promise((resolve) => setImmediate(resolve));
      }
      over = true;
    })();
    for (let step = 0; step < 60; step += 1) {
      const burst = Math.floor(random() * 8);
      for (let index = 0; index < burst; index += 1) {
        const heard = log.append();
        // A connection that is lost brings nothing; what it brings next is told after the log was named.
        if (random() < 0.05) feed.fallBehind();
        else feed.push(heard);
      }
      if (random() < 0.5) await new Promise((resolve) => setImmediate(resolve));
    }
    feed.fallBehind();
    feed.close();
    await within(reading, `seed ${seed}`);
    assert.ok(over);
    assert.deepEqual(
      seen,
      log.events.map(({ position }) => position),
      `seed ${seed}`,
    );
  }
});
