/** What a browser knows of the network and its user, and what the client makes of it. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { createClient } from "../../clients/js/src/index.js";
import { startGateway, until } from "./support/gateway.js";

const page = new EventTarget();
globalThis.addEventListener = page.addEventListener.bind(page);
globalThis.removeEventListener = page.removeEventListener.bind(page);
globalThis.document = { visibilityState: "visible" };

/** Whoever waits by himself waits for an hour. */
const patient = { shared: false, minBackoffMs: 3_600_000, maxBackoffMs: 3_600_000 };

async function liveClient(more) {
  const gateway = await startGateway();
  gateway.publish(1, { eventTs: 1, price: "1" });
  const client = createClient({ url: gateway.url, ...patient, ...more });
  const quotes = [];
  client.subscribe(1, (quote) => quotes.push(quote));
  await until("the price", () => quotes.length && client.state.status === "live");
  const done = async () => {
    client.close();
    await gateway.kill();
  };
  return { gateway, client, newest: () => quotes.at(-1), done };
}

for (const [what, event] of [
  ["the network comes back", "online"],
  ["the page comes into view", "visibilitychange"],
]) {
  test(`when ${what}, nobody waits out a pause`, async () => {
    const { gateway, client, newest, done } = await liveClient();
    gateway.only().cut();
    await until("the pause", () => client.state.status === "waiting");
    assert.ok(newest().stale);
    // A flood of such events makes no flood of attempts: the last one must be a second old.
    await until("it goes on at once", () => {
      page.dispatchEvent(new Event(event));
      return client.state.status === "live";
    });
    await until("current", () => !newest().stale);
    assert.equal(gateway.history.length, 2);
    await done();
  });
}

test("a pause that the gateway ordered is kept all the same", async () => {
  const { gateway, client, done } = await liveClient();
  gateway.only().message({ type: "reconnect", after_ms: 2_500 });
  gateway.only().close(1012, "service_restart");
  await until("the pause", () => client.state.status === "waiting");
  const { retryAt } = client.state;
  await until("the next session", () => {
    page.dispatchEvent(new Event("online"));
    return gateway.history.length === 2;
  });
  assert.ok(Date.now() >= retryAt - 5, `${retryAt - Date.now()} ms too early`);
  await done();
});

test("a socket that died with the network is found out in seconds, not in a heartbeat", async () => {
  const { gateway, client, newest, done } = await liveClient({ heartbeatMs: 20_000 });
  gateway.only().silent = true;
  const at = Date.now();
  page.dispatchEvent(new Event("offline"));
  await until("stale", () => newest().stale, 15_000);
  assert.ok(Date.now() - at < 15_000, "sooner than by heartbeats, which take twenty seconds");
  assert.equal(client.state.reason, "silent");
  await done();
});

test("what was under way when the network died doesn't pass for its answer", async () => {
  const { gateway, client, newest, done } = await liveClient({ heartbeatMs: 60_000 });
  page.dispatchEvent(new Event("offline"));
  gateway.publish(1, { eventTs: 2, price: "2" });
  gateway.only().silent = true;
  await until("the price that was under way", () => newest().price === "2");
  await until("stale", () => newest().stale, 15_000);
  assert.equal(client.state.reason, "silent");
  await done();
});

test("a socket whose answer comes late behind prices is kept", async () => {
  const { gateway, client, newest, done } = await liveClient({ heartbeatMs: 8_000 });
  const session = gateway.only();
  const answer = session.answer.bind(session);
  const asked = [];
  session.answer = (message) => asked.push(message);
  page.dispatchEvent(new Event("visibilitychange"));
  // Longer than the answer alone may take.
  for (let price = 2; price <= 6; price++) {
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    gateway.publish(1, { eventTs: price, price: `${price}` });
  }
  await until("the last of them", () => newest().price === "6");
  session.answer = answer;
  asked.forEach(answer);
  gateway.publish(1, { eventTs: 7, price: "7" });
  await until("the next price", () => newest().price === "7");
  assert.equal(client.state.status, "live");
  assert.equal(gateway.history.length, 1);
  await done();
});

test("a socket that answers is kept when the page comes into view", async () => {
  const { gateway, newest, done } = await liveClient();
  const asked = () => gateway.only().of("ping").length;
  const before = asked();
  page.dispatchEvent(new Event("visibilitychange"));
  await until("the question", () => asked() > before);
  gateway.publish(1, { eventTs: 2, price: "2" });
  await until("the next price", () => newest().price === "2");
  assert.equal(gateway.history.length, 1);
  await done();
});
