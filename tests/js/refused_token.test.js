import assert from "node:assert/strict";
import { test } from "node:test";
import { createClient } from "../../clients/js/src/index.js";

/** A gateway in memory, for tests that let hours pass: it accepts one token. */
function fakeGateway(good) {
  const attempts = [];
  globalThis.WebSocket = class {
    readyState = 1;
    constructor() {
      queueMicrotask(() => this.onopen?.());
    }
    send(text) {
      const message = JSON.parse(text);
      const say = (answer) => queueMicrotask(() => this.onmessage?.({ data: JSON.stringify(answer) }));
      if (message.type === "auth") {
        attempts.push({ token: message.token, at: Date.now() });
        if (message.token === good) return say({ type: "auth", ok: true, ts: 0 });
        say({ type: "error", request_id: "", code: "UNAUTHORIZED", message: "expired" });
      }
      if (message.type === "subscribe") say({ type: "subscribe", request_id: "", subscribed: message.topics, already_subscribed: [], rejected: [] });
    }
    close() {}
  };
  return attempts;
}

async function pass(t, seconds) {
  for (let i = 0; i < seconds; i++) {
    for (let turn = 0; turn < 5; turn++) await new Promise(setImmediate);
    t.mock.timers.tick(1_000);
  }
  for (let turn = 0; turn < 5; turn++) await new Promise(setImmediate);
}

test("R61: a refused token is tried a few times with growing pauses, then never; a fresh one connects at once", async (t) => {
  const real = globalThis.WebSocket;
  t.mock.timers.enable({ apis: ["setTimeout", "setInterval", "Date"], now: 1_800_000_000_000 });
  const attempts = fakeGateway("fresh");
  let token = "expired";
  let asked = 0;
  const client = createClient({ url: "http://gateway.test", shared: false, token: () => (asked++, token) });
  client.subscribe("1", () => {});
  await pass(t, 600);

  assert.equal(attempts.length, 5);
  assert.ok(asked >= attempts.length);
  const pauses = attempts.slice(1).map((attempt, i) => attempt.at - attempts[i].at);
  for (let i = 1; i < pauses.length; i++) assert.ok(pauses[i] > 2 * pauses[i - 1], `${pauses}`);
  assert.ok(pauses.at(-1) >= 120_000, `${pauses}`);
  assert.equal(client.state.status, "signin");
  await pass(t, 3_600);
  assert.equal(attempts.length, 5);

  token = "fresh";
  client.connect();
  await pass(t, 0);
  assert.equal(attempts.length, 6);
  assert.equal(client.state.status, "live");
  client.close();
  globalThis.WebSocket = real;
});

test("R61: other ends keep the normal pauses", async (t) => {
  const real = globalThis.WebSocket;
  t.mock.timers.enable({ apis: ["setTimeout", "setInterval", "Date"], now: 1_800_000_000_000 });
  let attempts = 0;
  globalThis.WebSocket = class {
    readyState = 1;
    constructor() {
      attempts++;
      queueMicrotask(() => this.onclose?.({ code: 4500, reason: "slow_consumer" }));
    }
    send() {}
    close() {}
  };
  const client = createClient({ url: "http://gateway.test", shared: false, transport: "ws" });
  client.subscribe("1", () => {});
  await pass(t, 600);
  assert.ok(attempts > 30 && attempts < 120, `${attempts}`);
  client.close();
  globalThis.WebSocket = real;
});
