/** The SharedWorker's side of a tab, with the tab's side played by the test. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { startGateway, until } from "./support/gateway.js";

test("a tab that takes nothing costs a bounded queue, and then gets the newest of each", async () => {
  const gateway = await startGateway();
  globalThis.self = {};
  const leave = {};
  Object.defineProperty(globalThis, "navigator", {
    value: { locks: { request: (name, then) => (leave[name] = then) } },
    configurable: true,
  });
  await import("../../clients/js/src/worker.js");
  const open = (lock) => {
    const taken = [];
    const port = { postMessage: (message) => taken.push(message) };
    self.onconnect({ ports: [port] });
    const tell = (data) => port.onmessage({ data });
    const options = { url: gateway.url, transport: "ws", heartbeatMs: 20_000, minBackoffMs: 20, maxBackoffMs: 100 };
    tell({ lock, options });
    return { tell, taken, prices: () => taken.flatMap(({ quote }) => (quote ? [`${quote.id}: ${quote.price}`] : [])) };
  };
  const frozen = open("frozen");
  const awake = open("awake");
  // Each answers when asked for a token, as a guest.
  for (const page of [frozen, awake]) {
    page.taken.push = function (message) {
      if (message.ask) queueMicrotask(() => page.tell({ answer: message.ask }));
      return Array.prototype.push.call(this, message);
    };
    page.tell({ want: [["1", 0], ["2", 0], ["3", 0]] });
  }
  await until("subscribed", () => gateway.sessions.size === 1 && gateway.only().topics.size === 3);
  let acknowledged = 0;
  for (let n = 1; n <= 1_500; n++) {
    gateway.publish((n % 3) + 1, { price: `${n}` });
    if (n % 100) continue;
    await until("the awake tab has them", () => awake.prices().length === n);
    for (; awake.taken.length - acknowledged >= 64; acknowledged += 64) awake.tell({ took: 64 });
  }
  assert.equal(frozen.taken.length, 256);

  const before = frozen.taken.length;
  for (let n = 0; n < 4; n++) frozen.tell({ took: 64 });
  assert.deepEqual(frozen.prices().slice(-3).sort(), ["1: 1500", "2: 1498", "3: 1499"]);
  assert.equal(frozen.taken.length, before + 3, "only the newest waited");
  for (const gone of Object.values(leave)) gone();
  await until("nobody", () => gateway.sessions.size === 0);
  await gateway.kill();
});
