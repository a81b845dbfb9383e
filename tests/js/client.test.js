import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { createClient } from "../../clients/js/src/index.js";
import { startGateway, until } from "./support/gateway.js";

const open = [];
const quick = { minBackoffMs: 20, maxBackoffMs: 100, shared: false };

async function gatewayAndClient(gatewayOptions, clientOptions) {
  const gateway = await startGateway(gatewayOptions);
  const client = createClient({ url: gateway.url, ...quick, ...clientOptions });
  open.push(() => client.close(), () => gateway.kill());
  const states = [];
  client.on("state", (state) => states.push(state));
  return { gateway, client, states };
}

/** Subscribes and collects. */
function watch(client, ids, options) {
  const quotes = [];
  const stop = client.subscribe(ids, (quote) => quotes.push(quote), options);
  return { quotes, stop, newest: () => quotes.at(-1) };
}

const live = (client) => until("live", () => client.state.status === "live");

afterEach(async () => {
  for (const close of open.splice(0)) await close();
});

for (const transport of ["ws", "sse"]) {
  test(`a quote keeps the source's digits over ${transport}`, async () => {
    const { gateway, client } = await gatewayAndClient({}, { transport });
    gateway.publish(5930, { eventTs: 1, price: "71000.10", volume: "1234567890123456789", at: "[2026,7,6,9,0,1]" });
    const { quotes } = watch(client, "005930");
    await until("a quote", () => quotes.length);
    assert.equal(quotes[0].id, "5930");
    assert.equal(quotes[0].price, "71000.10");
    assert.equal(quotes[0].volume, "1234567890123456789");
    assert.deepEqual(quotes[0].at, [2026, 7, 6, 9, 0, 1]);
    assert.equal(quotes[0].initial, true);
    assert.equal(client.state.transport, transport);
  });

  test(`R34: neighbours above 2^53 stay apart over ${transport}, through a reconnect`, async () => {
    const { gateway, client } = await gatewayAndClient({}, { transport });
    const { quotes } = watch(client, 9007199254740993n);
    const check = async () => {
      await live(client);
      gateway.publish("9007199254740992", { price: "1" });
      gateway.publish("9007199254740993", { price: "2" });
      await until("the quote", () => quotes.length);
      assert.deepEqual(quotes.map((quote) => [quote.id, quote.price]), [["9007199254740993", "2"]]);
      assert.deepEqual([...gateway.only().topics.keys()], ["quote:9007199254740993"]);
    };
    await check();
    gateway.prices.clear();
    gateway.only().cut();
    await until("stale", () => quotes.at(-1).stale);
    quotes.length = 0;
    await check();
  });

  test(`a killed gateway is found again over ${transport}, and prices are stale meanwhile`, async () => {
    const { gateway, client, states } = await gatewayAndClient({}, { transport });
    gateway.publish(1, { eventTs: 1, price: "10" });
    const { newest } = watch(client, 1);
    await until("the first price", newest);
    await gateway.kill();
    await until("the stale mark", () => newest().stale);
    gateway.prices.set("1", { eventTs: 2, price: "11" });
    await gateway.start();
    await until("the new price", () => newest().price === "11" && !newest().stale);
    assert.ok(states.some((state) => state.status === "waiting" && state.retryAt > 0));
    assert.equal(gateway.sessions.size, 1);
  });

  test(`an older quote is never shown after a newer one over ${transport}`, async () => {
    const { gateway, client } = await gatewayAndClient({}, { transport });
    gateway.publish(1, { eventTs: 5, seq: "5", price: "10.5" });
    const { quotes, newest } = watch(client, 1);
    await until("the first price", newest);
    gateway.prices.set("1", { eventTs: 4, seq: "4", price: "10.4" });
    gateway.only().cut();
    await live(client);
    await until("the snapshot is sent", () => gateway.sessions.size === 1 && gateway.only().topics.size);
    gateway.publish(1, { eventTs: 3, seq: "3", price: "10.3" });
    gateway.publish(1, { eventTs: 6, seq: "6", price: "10.6" });
    await until("the newest", () => newest().price === "10.6");
    assert.deepEqual([...new Set(quotes.map((quote) => quote.price))], ["10.5", "10.6"]);
  });
}

test("within a session the gateway's order counts, for stamps alone can mislead", async () => {
  const { gateway, client } = await gatewayAndClient();
  // The stamp of a stored price may be the time of its writing, which comes after its making.
  gateway.publish(1, { eventTs: 105, price: "1" });
  const { newest } = watch(client, 1);
  await until("the stored price", newest);
  gateway.publish(1, { eventTs: 103, price: "2" });
  await until("the next price", () => newest().price === "2");
});

test("numbers that are rounded already, and what is no id, are refused", () => {
  const client = createClient({ url: "http://127.0.0.1:1", shared: false });
  for (const id of [2 ** 53, 1.5, "+5", " 5", "", "0x5", "abc", "9223372036854775808"]) {
    assert.throws(() => client.subscribe(id, () => {}), RangeError, `${id}`);
  }
  client.close();
});

test("R28: an instrument subscribed twice is asked for once, and its quote comes once to each", async () => {
  const { gateway, client } = await gatewayAndClient();
  const first = watch(client, ["101", "101", "0101"]);
  const second = watch(client, ["101"]);
  await live(client);
  gateway.publish(101, { price: "1" });
  await until("both have it", () => first.newest() && second.newest());
  assert.equal(first.quotes.length, 1);
  assert.equal(second.quotes.length, 1);
  const session = gateway.only();
  assert.deepEqual(session.of("subscribe").map((message) => message.topics), [["quote:101"]]);
  first.stop();
  first.stop();
  gateway.publish(101, { price: "2" });
  await until("the second has it", () => second.newest().price === "2");
  assert.equal(first.quotes.length, 1);
  assert.equal(session.of("unsubscribe").length, 0);
  second.stop();
  await until("the end is told", () => session.of("unsubscribe").length === 1);
});

test("subscriptions are sent once after a reconnect, in one message", async () => {
  const { gateway, client } = await gatewayAndClient();
  watch(client, ["1", "2"]);
  watch(client, ["2", "3"]);
  await live(client);
  watch(client, ["4"]);
  await until("the fourth", () => gateway.only().topics.size === 4);
  gateway.only().cut();
  await until("the next session", () => gateway.history[1]?.topics.size === 4);
  await live(client);
  assert.deepEqual(gateway.history[1].of("subscribe").map((m) => m.topics), [["quote:1", "quote:2", "quote:3", "quote:4"]]);
});

test("many changes within a moment make few messages", async () => {
  const { gateway, client } = await gatewayAndClient();
  watch(client, ["0"]);
  await live(client);
  for (let i = 1; i < 40; i++) {
    const { stop } = watch(client, [`${i}`]);
    if (i % 2) stop();
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  await until("all even ones", () => gateway.only().topics.size === 20);
  assert.ok(gateway.only().received.length < 16, `${gateway.only().received.length} messages`);
});

test("R56: a silent socket is given up in time, without waiting for its close", async () => {
  const heartbeatMs = 2_000;
  const { gateway, client } = await gatewayAndClient({ tokens: ["t"] }, { heartbeatMs, token: () => "t" });
  gateway.publish(1, { eventTs: 1, price: "1" });
  const { newest } = watch(client, 1);
  await live(client);
  await until("the price", newest);
  const dead = gateway.only();
  dead.silent = true;
  const silentAt = Date.now();
  await until("stale", () => newest().stale, 2 * heartbeatMs + 2_000);
  gateway.prices.set("1", { eventTs: 2, price: "2" });
  await until("current again", () => newest().price === "2" && !newest().stale, 2 * heartbeatMs + 2_000);
  assert.ok(Date.now() - silentAt < 2 * heartbeatMs + 2_000);
  assert.ok(!dead.closedByClient);
  const next = gateway.history[1];
  assert.deepEqual(next.received.slice(0, 2).map((m) => m.type), ["auth", "subscribe"]);
});

test("R56 over SSE: a stream without heartbeats is given up", async () => {
  const { gateway, client } = await gatewayAndClient({}, { transport: "sse", heartbeatMs: 500 });
  gateway.publish(1, { eventTs: 1, price: "1" });
  const { newest } = watch(client, 1);
  await until("the price", newest);
  gateway.only().silent = true;
  await until("stale", () => newest().stale, 4_000);
  await until("current again", () => !newest().stale, 4_000);
  assert.equal(gateway.history.length, 2);
});

test("a heartbeat is answered, and a quiet socket that answers is kept", async () => {
  const { gateway, client } = await gatewayAndClient({}, { heartbeatMs: 400 });
  watch(client, 1);
  await live(client);
  const session = gateway.only();
  session.message({ type: "ping", ts: 1 });
  await until("a pong", () => session.of("pong").length === 1);
  await until("our own questions", () => session.of("ping").length > 4);
  assert.equal(gateway.history.length, 1);
});

test("the wait that the gateway orders while draining is kept", async () => {
  const { gateway, client, states } = await gatewayAndClient();
  watch(client, 1);
  await live(client);
  const told = Date.now();
  gateway.only().message({ type: "reconnect", after_ms: 400 });
  gateway.only().close(1012, "service_restart");
  await until("the next session", () => gateway.history.length === 2);
  assert.ok(Date.now() - told >= 395, `${Date.now() - told}`);
  assert.equal(states.find((state) => state.status === "waiting").told, true);
});

test("the newest of an unread iteration comes first, and the end ends it", async () => {
  const { gateway, client } = await gatewayAndClient();
  const quotes = client.quotes("7")[Symbol.asyncIterator]();
  await live(client);
  const first = quotes.next();
  gateway.publish(7, { eventTs: 1, price: "1" });
  assert.equal((await first).value.price, "1");
  for (const n of ["2", "3", "4"]) gateway.publish(7, { eventTs: n, price: n });
  await until("the last one is here", () => client.latest("7").price === "4");
  assert.equal((await quotes.next()).value.price, "4");
  const pending = quotes.next();
  client.close();
  assert.equal((await pending).done, true);
});

test("a listener that comes later gets the known quote, and one that throws spoils nothing", async () => {
  const { gateway, client } = await gatewayAndClient();
  const thrown = [];
  globalThis.reportError = (error) => thrown.push(error.message);
  client.subscribe(1, () => {
    throw Error("mine");
  });
  const first = watch(client, 1);
  await live(client);
  gateway.publish(1, { price: "1" });
  await until("the quote", first.newest);
  const late = watch(client, 1);
  await until("the known quote", late.newest);
  delete globalThis.reportError;
  assert.deepEqual(thrown, ["mine"]);
});

test("the rate is asked for, the highest wins, and none lifts it", async () => {
  const { gateway, client } = await gatewayAndClient();
  const slow = watch(client, 1, { maxRateHz: 2 });
  watch(client, 1, { maxRateHz: 1 });
  watch(client, 2);
  await live(client);
  await until("both topics", () => gateway.only().topics.size === 2);
  assert.equal(gateway.only().topics.get("quote:1"), 2);
  assert.equal(gateway.only().topics.get("quote:2"), undefined);
  slow.stop();
  await until("the lower rate", () => gateway.only().topics.get("quote:1") === 1);
  watch(client, 1);
  await until("no rate", () => gateway.only().topics.get("quote:1") === undefined);
});

for (const transport of ["ws", "sse"]) {
  test(`the gateway's clock is found within the error that is stated, over ${transport}`, async () => {
    const { gateway, client } = await gatewayAndClient({}, { transport });
    gateway.clockAheadMs = 123_456;
    const { newest } = watch(client, 1);
    await live(client);
    const clock = await until("the clock", () => client.clock);
    assert.ok(Math.abs(clock.offsetMs - 123_456) <= clock.errorMs, JSON.stringify(clock));
    gateway.publish(1, { emittedAt: `${Date.now() + 123_456}`, price: "1" });
    await until("a quote", newest);
    assert.ok(newest().latencyMs >= -newest().latencyErrorMs, JSON.stringify(newest()));
  });
}

test("a stale instrument is marked, and its mark taken back", async () => {
  const { gateway, client } = await gatewayAndClient();
  gateway.publish(1, { price: "1" });
  const { newest } = watch(client, 1);
  await until("the quote", newest);
  gateway.only().message({ type: "status", topic: "quote:1", state: "stale", since: 1 });
  await until("stale", () => newest().stale);
  gateway.only().message({ type: "status", topic: "quote:1", state: "live" });
  await until("live", () => !newest().stale);
});

test("where WebSocket is blocked, SSE takes over at once", async () => {
  const { gateway, client } = await gatewayAndClient();
  gateway.refuse = (request) => (request.headers.upgrade ? { status: 502 } : undefined);
  gateway.publish(1, { price: "1" });
  const { newest } = watch(client, 1);
  await until("the quote", newest);
  assert.equal(client.state.transport, "sse");
  gateway.only().cut();
  await until("the second stream", () => gateway.history.length === 2);
  assert.equal(gateway.history[1].transport, "sse");
});

test("a stream is resumed from its cursor, and what didn't change is vouched for", async () => {
  const { gateway, client } = await gatewayAndClient({}, { transport: "sse" });
  gateway.publish(1, { eventTs: 1, price: "1" });
  const { newest } = watch(client, 1);
  await until("the quote", newest);
  gateway.prices.clear();
  gateway.only().cut();
  await until("stale", () => newest().stale);
  await until("vouched for", () => !newest().stale);
  assert.equal(gateway.history[1].cursor, "c1");
});

test("topics are added to an open stream without a stale moment", async () => {
  const { gateway, client, states } = await gatewayAndClient({}, { transport: "sse" });
  gateway.publish(1, { eventTs: 1, price: "1" });
  const { quotes, newest } = watch(client, 1);
  await until("the quote", newest);
  watch(client, [2, 3]);
  await until("all topics", () => gateway.history[1]?.topics.size === 3);
  gateway.publish(1, { eventTs: 2, price: "2" });
  await until("the next quote", () => newest().price === "2");
  assert.ok(quotes.every((quote) => !quote.stale));
  assert.deepEqual(states.map((state) => state.status), ["connecting", "live"]);
});

test("the transport can be changed while running", async () => {
  const { gateway, client } = await gatewayAndClient({}, { transport: "ws" });
  gateway.publish(1, { eventTs: 1, price: "1" });
  const { newest } = watch(client, 1);
  await until("the quote", newest);
  client.setTransport("sse");
  await until("the stream", () => client.state.transport === "sse" && client.state.status === "live");
  await until("current", () => !newest().stale);
  await until("the socket is gone", () => gateway.sessions.size === 1);
  assert.equal(gateway.only().transport, "sse");
});

test("R48: a 502 is tried again, 429 waits as told, 204 and 403 stop", async () => {
  const { gateway, client, states } = await gatewayAndClient({}, { transport: "sse" });
  let asked = [];
  let refusal = { status: 502 };
  gateway.refuse = () => (asked.push(Date.now()), refusal);
  const { newest } = watch(client, 1);
  await until("several attempts", () => asked.length > 3);
  assert.ok(states.some((state) => state.reason === "http_502"));
  refusal = undefined;
  await live(client);
  gateway.publish(1, { price: "1" });
  await until("a price", newest);

  refusal = { status: 429, headers: { "retry-after": "1" } };
  asked = [];
  gateway.only().cut();
  await until("the refusal", () => client.state.reason === "http_429");
  assert.equal(client.state.told, true);
  refusal = undefined;
  await live(client);
  assert.ok(asked.at(-1) - asked.at(-2) >= 1_000, `${asked}`);

  refusal = { status: 204 };
  gateway.only().cut();
  await until("the stop", () => client.state.status === "closed");
  assert.equal(client.state.reason, "stopped");
  const before = asked.length;
  await new Promise((resolve) => setTimeout(resolve, 300));
  assert.equal(asked.length, before);
});

test("R48: after a 401 a new token is asked for, with which it goes on at once", async () => {
  const tokens = ["old", "new"];
  const refusals = [];
  const { gateway, client } = await gatewayAndClient(
    { tokens: ["new"] },
    { transport: "sse", token: ({ refused }) => (refusals.push(refused), tokens.shift()) },
  );
  watch(client, 1);
  await live(client);
  assert.deepEqual(refusals, [undefined, "old"]);
  assert.equal(gateway.only().token, "new");
});

test("a token that expires is replaced in place before its time", async () => {
  const jwt = (exp) => `x.${btoa(JSON.stringify({ exp, n: Math.random() }))}.y`;
  const gave = [];
  const token = () => (gave.push(jwt(Date.now() / 1000 + 2)), gave.at(-1));
  const { gateway, client } = await gatewayAndClient({}, { token, heartbeatMs: 800 });
  watch(client, 1);
  await live(client);
  await until("a second token", () => gateway.only().of("auth").length === 2);
  assert.equal(gateway.only().of("auth")[1].token, gave[1]);
  assert.equal(gateway.history.length, 1);
});

test("a session that expired goes on with the fresh token at once", async () => {
  let current = "one";
  const { gateway, client } = await gatewayAndClient({ tokens: ["one"] }, { token: () => current });
  watch(client, 1);
  await live(client);
  gateway.tokens = ["two"];
  current = "two";
  gateway.only().close(1008, "token_expired");
  await until("the next session", () => gateway.history[1]?.token === "two", 4_000);
});

test("a stream says why it ends, and an expired token is replaced at once", async () => {
  let current = "one";
  const { gateway, client } = await gatewayAndClient({ tokens: ["one"] }, { transport: "sse", token: () => current });
  watch(client, 1);
  await live(client);
  gateway.tokens = ["two"];
  current = "two";
  gateway.only().message({ type: "close", code: 1008, reason: "token_expired" });
  await until("the next stream", () => gateway.history[1]?.token === "two", 4_000);
});

test("a guest that must sign in is told so, and goes on when asked to", async () => {
  let token;
  const { gateway, client } = await gatewayAndClient({ tokens: ["t"] }, { token: () => token });
  watch(client, 1);
  await until("sign in", () => client.state.status === "signin");
  token = "t";
  client.connect();
  await live(client);
  assert.equal(gateway.only().token, "t");
});

test("without subscriptions the session ends, and a new one begins it again", async (t) => {
  const { gateway, client } = await gatewayAndClient();
  const { stop } = watch(client, 1);
  await live(client);
  t.mock.timers.enable({ apis: ["setTimeout"] });
  stop();
  await new Promise(setImmediate);
  t.mock.timers.tick(10_001);
  t.mock.timers.reset();
  await until("nobody is there", () => gateway.sessions.size === 0);
  assert.equal(client.state.status, "idle");
  watch(client, 1);
  await live(client);
});

test("a session that is lost when nothing is wanted any more is not sought again", async () => {
  const { gateway, client, states } = await gatewayAndClient();
  const { stop } = watch(client, 1);
  await live(client);
  stop();
  await until("the end is told", () => gateway.only().of("unsubscribe").length);
  gateway.only().cut();
  await until("idle", () => client.state.status === "idle");
  assert.deepEqual(states.map((state) => state.status), ["connecting", "live", "waiting", "idle"]);
  assert.equal(gateway.history.length, 1);
});

test("what the gateway rejects is told", async () => {
  const { gateway, client } = await gatewayAndClient();
  const rejected = [];
  client.on("rejected", (rejection) => rejected.push(rejection));
  watch(client, 1);
  await live(client);
  gateway.only().message({ type: "subscribe", request_id: "", subscribed: [], already_subscribed: [], rejected: ["quote:9"], rejected_reasons: ["forbidden"] });
  await until("the rejection", () => rejected.length);
  assert.deepEqual(rejected, [{ id: "9", reason: "forbidden" }]);
});
