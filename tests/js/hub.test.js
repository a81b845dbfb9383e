import assert from "node:assert/strict";
import { test } from "node:test";
import { createHub } from "../../clients/js/src/hub.js";
import { startGateway, until } from "./support/gateway.js";

const options = (gateway) => ({ url: gateway.url, transport: "auto", heartbeatMs: 20_000, minBackoffMs: 20, maxBackoffMs: 100 });

/** A tab, as the hub sees it. */
function tab(hub, token) {
  const heard = [];
  const page = hub.join((message) => {
    heard.push(message);
    if (message.ask && token) queueMicrotask(() => page.tell({ answer: message.ask, token }));
  });
  return Object.assign(page, { heard, quotes: () => heard.flatMap(({ quote }) => quote ?? []) });
}

test("tabs share one session, and each gets what it asked for", async () => {
  const gateway = await startGateway();
  const hub = createHub(options(gateway));
  const one = tab(hub, "t");
  const two = tab(hub, "t");
  one.tell({ want: [["1", 0], ["2", 0]] });
  two.tell({ want: [["2", 2], ["3", 0]] });
  await until("all three", () => gateway.sessions.size && gateway.only().topics.size === 3);
  assert.equal(gateway.only().topics.get("quote:2"), undefined, "unlimited for one is unlimited for both");
  for (const id of [1, 2, 3]) gateway.publish(id, { price: `${id}` });
  await until("both served", () => one.quotes().length === 2 && two.quotes().length === 2);
  assert.deepEqual(two.quotes().map(({ id }) => id), ["2", "3"]);

  const late = tab(hub, "t");
  late.tell({ want: [["3", 0]] });
  assert.equal(late.quotes()[0].price, "3", "known quotes don't wait for the gateway");

  two.leave();
  late.leave();
  await until("the third is given back", () => !gateway.only().topics.has("quote:3"));
  assert.ok(gateway.only().topics.has("quote:2"));
  one.leave();
  await until("nobody", () => gateway.sessions.size === 0);
  assert.equal(gateway.history.length, 1);
  await gateway.kill();
});

test("a frozen tab that doesn't answer is passed over when the token is asked for", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const gateway = await startGateway({ tokens: ["t"] });
  const hub = createHub(options(gateway));
  const awake = tab(hub, "t");
  const frozen = tab(hub, undefined);
  awake.tell({ want: [["1", 0]] });
  assert.equal(frozen.heard.filter(({ ask }) => ask).length, 1, "the newest is asked first");
  t.mock.timers.tick(4_000);
  t.mock.timers.reset();
  await until("signed in", () => gateway.history[0]?.topics.has("quote:1"));
  awake.leave();
  frozen.leave();
  await gateway.kill();
});

test("a tab that left is not heard any more", async () => {
  const gateway = await startGateway();
  const hub = createHub(options(gateway));
  const page = tab(hub, "t");
  page.leave();
  page.tell({ want: [["1", 0]] });
  page.tell({ wake: "online" });
  await new Promise((resolve) => setTimeout(resolve, 100));
  assert.equal(gateway.history.length, 0);
  await gateway.kill();
});
