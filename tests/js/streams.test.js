/** Lossless streams: each entry once and in order, whatever becomes of the connection. */

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { openStream, StreamError } from "../../clients/js/src/streams.js";
import { until } from "./support/gateway.js";
import { startStreams } from "./support/streams.js";

const open = [];

async function streams() {
  const gateway = await startStreams();
  open.push(() => gateway.stop());
  return gateway;
}

/** Opens the stream and reads it to its end. */
function read(gateway, options) {
  const states = [];
  const quick = { url: gateway.url, minBackoffMs: 20, maxBackoffMs: 50, onState: (state) => states.push(state) };
  const stream = openStream("a", { ...quick, ...options });
  open.unshift(() => stream.close());
  const messages = [];
  const done = (async () => {
    for await (const message of stream) messages.push(message);
  })();
  done.catch(() => {});
  return { stream, messages, states, done, text: () => messages.map(({ data = "" }) => data).join("") };
}

afterEach(async () => {
  for (const close of open.splice(0)) await close();
});

const words = (n, from = 0) => Array.from({ length: n }, (_, i) => `w${from + i} `).join("");

for (const transport of ["sse", "ws"]) {
  test(`a stream is read from its start to its end over ${transport}`, async () => {
    const gateway = await streams();
    for (let n = 0; n < 10; n++) gateway.add(`w${n} `);
    const reader = read(gateway, { transport });
    await until("the first ten", () => reader.messages.length === 10);
    for (let n = 10; n < 20; n++) gateway.add(`w${n} `);
    gateway.finish("cancelled");
    await reader.done;
    assert.equal(reader.text(), words(20));
    assert.deepEqual(reader.messages.at(-1), { type: "end", id: "1700000000000-20", status: "cancelled" });
    assert.deepEqual(reader.messages[0], { type: "entry", id: "1700000000000-0", event: "token", data: "w0 " });
    assert.deepEqual(reader.stream.state, { status: "ended", reason: "cancelled" });
    assert.equal(gateway.history.length, 1);
  });

  test(`cut at every single entry, it is whole over ${transport}`, async () => {
    const gateway = await streams();
    const reader = read(gateway, { transport });
    await until("a connection", () => gateway.links.size);
    // Each entry is cut off once before it is sent, and once more right after.
    const cut = new Set();
    gateway.before = (message, link) => {
      if (cut.has(message.id)) return false;
      cut.add(message.id);
      link.cut();
      gateway.links.delete(link);
      return true;
    };
    for (let n = 0; n < 30; n++) {
      gateway.add(`w${n} `);
      await until("the entry after the cut", () => reader.messages.length === n + 1);
      if (n % 2) for (const link of [...gateway.links]) link.cut();
    }
    gateway.finish();
    await reader.done;
    assert.equal(reader.text(), words(30));
    assert.ok(gateway.history.length > 30, `${gateway.history.length}`);
    assert.equal(gateway.history.at(-1).from, "1700000000000-29");
  });

  test(`it begins where it is told, and at the end it is over at once, over ${transport}`, async () => {
    const gateway = await streams();
    for (let n = 0; n < 5; n++) gateway.add(`w${n} `);
    gateway.finish();
    const late = read(gateway, { transport, from: "1700000000000-2" });
    await late.done;
    assert.equal(late.text(), words(2, 3));
    assert.equal(late.stream.cursor, "1700000000000-5");
    if (transport === "ws") gateway.refuse = () => ({ close: [1000, "normal"] });
    const over = read(gateway, { transport, from: "1700000000000-5" });
    await over.done;
    assert.deepEqual([over.messages, over.stream.state.status], [[], "ended"]);
  });

  test(`what is missing is told in its place over ${transport}`, async () => {
    const gateway = await streams();
    const reader = read(gateway, { transport });
    await until("a connection", () => gateway.links.size);
    const gap = { type: "gap", after: "0", before: "1700000000000-7", missing: 7 };
    gateway.n = 7;
    gateway.say(gap);
    gateway.add("w7 ");
    const lost = { type: "lost", id: "1700000000000-5", after: "1700000000000-5", through: "1700000000000-7", missing: 1 };
    gateway.say(lost);
    await until("both", () => reader.messages.length === 3);
    assert.equal(reader.stream.cursor, "1700000000000-5", "the stream goes on behind what is left of it");
    gateway.finish();
    await reader.done;
    assert.deepEqual(reader.messages.map(({ type }) => type), ["gap", "entry", "lost", "end"]);
    assert.deepEqual([reader.messages[0], reader.messages[2]], [gap, lost]);
  });

  test(`a reader that doesn't read costs bounded memory and loses nothing over ${transport}`, async () => {
    const gateway = await streams();
    let taken = 0;
    const realFetch = globalThis.fetch;
    globalThis.fetch = async (...request) => {
      const { status, headers, body } = await realFetch(...request);
      const reader = body.getReader();
      const read = async () => {
        const got = await reader.read();
        taken += got.value?.length ?? 0;
        return got;
      };
      return { status, headers, body: { getReader: () => ({ read }) } };
    };
    open.unshift(() => (globalThis.fetch = realFetch));
    const stream = openStream("a", { url: gateway.url, transport, minBackoffMs: 20, maxBackoffMs: 50 });
    open.unshift(() => stream.close());
    const reader = stream[Symbol.asyncIterator]();
    const first = reader.next();
    await until("a connection", () => gateway.links.size);
    const N = 20_000;
    const long = "x".repeat(500);
    for (let n = 0; n < N; n++) gateway.add(`w${n} ${long}`);
    gateway.finish();
    if (transport === "ws") await until("it lets go", () => stream.state.reason === "unread");
    else {
      for (let before = -1; before !== taken; await new Promise((resolve) => setTimeout(resolve, 300))) before = taken;
      assert.ok(taken > 0 && taken < 2_000_000, `${taken} bytes of eleven millions were taken`);
    }
    const seen = [(await first).value];
    for (let got; !(got = await reader.next()).done; ) seen.push(got.value);
    assert.equal(seen.length, N + 1);
    assert.ok(seen.slice(0, N).every(({ data }, n) => data === `w${n} ${long}`));
    assert.equal(gateway.history.length > 1, transport === "ws", `${gateway.history.length}`);
  });

  test(`the wait that a drain orders is kept over ${transport}`, async () => {
    const gateway = await streams();
    const reader = read(gateway, { transport });
    await until("a connection", () => gateway.links.size);
    gateway.add("w0 ");
    const told = Date.now();
    gateway.say({ type: "reconnect", after_ms: 400 });
    gateway.add("w1 ");
    for (const link of [...gateway.links]) link.end(1012, "service_restart");
    gateway.links.clear();
    await until("the next connection", () => gateway.history.length === 2);
    assert.ok(Date.now() - told >= 395, `${Date.now() - told}`);
    assert.equal(gateway.history[1].from, "1700000000000-1");
    gateway.finish();
    await reader.done;
    assert.equal(reader.text(), words(2));
    assert.equal(reader.states.find(({ status }) => status === "waiting").told, true);
  });

  test(`a stream that nobody knows is an error and not tried again over ${transport}`, async () => {
    const gateway = await streams();
    let asked = 0;
    gateway.refuse = () => (asked++, transport === "ws" ? { close: [4404, "unknown_stream"] } : { status: 404 });
    const reader = read(gateway, { transport });
    await assert.rejects(reader.done, (error) => error instanceof StreamError && error.reason === "unknown_stream");
    await new Promise((resolve) => setTimeout(resolve, 200));
    assert.equal(asked, 1);
    assert.equal(reader.stream.state.status, "closed");
  });

  test(`a refused guest and a forbidden stream are errors and not tried again over ${transport}`, async () => {
    const gateway = await streams();
    for (const [status, code, told, reason] of [
      [401, 1008, "auth_error", "unauthorized"],
      [403, 4403, "forbidden", "forbidden"],
      [400, 4400, "bad_request", "bad_request"],
    ]) {
      let asked = 0;
      gateway.refuse = () => (asked++, transport === "ws" ? { close: [code, told] } : { status });
      await assert.rejects(read(gateway, { transport }).done, { reason });
      await new Promise((resolve) => setTimeout(resolve, 100));
      assert.equal(asked, 1, reason);
    }
  });

  test(`from now on and cut before the first entry, it goes on where it began over ${transport}`, async () => {
    const gateway = await streams();
    gateway.add("before ");
    gateway.now = "1700000000000-0";
    const reader = read(gateway, { transport, from: "$" });
    await until("the place is known", () => reader.stream.cursor === gateway.now);
    for (const link of [...gateway.links]) link.cut();
    gateway.add("w0 ");
    gateway.finish();
    await reader.done;
    assert.equal(gateway.history[1].from, gateway.now);
    assert.deepEqual(reader.messages.map(({ type }) => type), ["entry", "end"]);
  });

  test(`a refused token is replaced at once, over ${transport}`, async () => {
    const gateway = await streams();
    gateway.tokens = ["new"];
    gateway.add("w0 ");
    gateway.finish();
    const asked = [];
    const token = ({ refused }) => (asked.push(refused), refused ? "new" : "old");
    const reader = read(gateway, { transport, token });
    await reader.done;
    assert.deepEqual(asked, [undefined, "old"]);
    assert.equal(reader.text(), "w0 ");
    assert.equal(gateway.history[0][transport === "ws" ? "ticket" : "token"], transport === "ws" ? "for-new" : "new");
  });
}

test("a token that stays refused ends in an error, also where there is always another", async () => {
  const gateway = await streams();
  gateway.tokens = [];
  const same = read(gateway, { token: () => "old" });
  await assert.rejects(same.done, { reason: "unauthorized" });
  let n = 0;
  const others = read(gateway, { token: () => `${n++}` });
  await assert.rejects(others.done, { reason: "unauthorized" });
  assert.equal(n, 5);
  const guest = read(gateway, {});
  await assert.rejects(guest.done, { reason: "unauthorized" });
});

test("a silent connection is given up, and the stream goes on", async () => {
  const gateway = await streams();
  const reader = read(gateway, { heartbeatMs: 400 });
  await until("a connection", () => gateway.links.size);
  gateway.add("w0 ");
  const [silent] = gateway.links;
  gateway.links.delete(silent);
  gateway.add("w1 ");
  gateway.finish();
  await reader.done;
  assert.equal(reader.text(), words(2));
  assert.ok(reader.states.some(({ reason }) => reason === "silent"));
});

test("a producer that falls silent is told, and its return", async () => {
  const gateway = await streams();
  const reader = read(gateway, {});
  await until("a connection", () => gateway.links.size);
  gateway.say({ type: "status", state: "stalled", reason: "producer", since: 1 });
  await until("stalled", () => reader.stream.state.status === "stalled");
  gateway.say({ type: "status", state: "live" });
  await until("live", () => reader.stream.state.status === "live");
  gateway.say({ type: "close", code: 4408, reason: "producer_timeout" });
  await assert.rejects(reader.done, { reason: "producer_timeout" });
});

test("503 is waited out as told", async () => {
  const gateway = await streams();
  gateway.finish();
  const asked = [];
  gateway.refuse = () => (asked.push(Date.now()), asked.length === 1 ? { status: 503, headers: { "retry-after": "1" } } : undefined);
  await read(gateway, {}).done;
  assert.ok(asked[1] - asked[0] >= 995, `${asked}`);
});

test("from now on without a first entry, a lost connection is a gap and not a secret", async () => {
  const gateway = await streams();
  gateway.add("before ");
  const reader = read(gateway, { from: "$" });
  await until("a connection", () => gateway.links.size);
  for (const link of [...gateway.links]) link.cut();
  await until("the next", () => gateway.history.length === 2 && gateway.links.size);
  gateway.add("w0 ");
  gateway.finish();
  await reader.done;
  assert.deepEqual(reader.messages[0], { type: "gap", after: "$" });
  assert.equal(reader.text(), "w0 ");
});

test("it can be cut and closed by hand", async () => {
  const gateway = await streams();
  const reader = read(gateway, {});
  await until("a connection", () => gateway.links.size);
  gateway.add("w0 ");
  await until("the entry", () => reader.messages.length);
  reader.stream.reconnect(100);
  assert.equal(reader.stream.state.status, "waiting");
  await until("cut off", () => !gateway.links.size);
  gateway.add("w1 ");
  await until("the entry that came meanwhile", () => reader.messages.length === 2);
  reader.stream.close();
  await reader.done;
  assert.equal(reader.text(), words(2));
  assert.equal(reader.stream.state.status, "closed");
  await until("nobody is there", () => !gateway.links.size);
});
