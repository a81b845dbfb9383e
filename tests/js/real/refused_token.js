/**
 * R61 against the real gateway: the token source gives the same expired token, while more than an hour passes by
 * the client's clock; then a fresh one. Arguments: URL, expired token, fresh token.
 */

import assert from "node:assert/strict";
import { mock } from "node:test";
import { createClient } from "../../../clients/js/src/index.js";
import { until } from "./support.js";

const [url, expired, fresh] = process.argv.slice(2);
mock.timers.enable({ apis: ["setTimeout", "setInterval", "Date"], now: Date.now() });

let token = expired;
let asked = 0;
const pauses = [];
const client = createClient({ url, shared: false, token: () => (asked++, token) });
client.on("state", ({ status, retryAt }) => status === "waiting" && pauses.push(retryAt - Date.now()));
const quotes = [];
client.subscribe("1", (quote) => quotes.push(quote));

/** Lets time pass by the client's clock, but not while the gateway has the word. */
async function pass(seconds) {
  for (let i = 0; i < seconds; i++) {
    await until("an answer", () => client.state.status !== "connecting");
    mock.timers.tick(1_000);
    await new Promise(setImmediate);
  }
}

await until("the first refusal", () => client.state.status === "waiting");
await pass(600);
assert.equal(client.state.status, "signin");
assert.ok(asked >= 5, `${asked}`);
for (let i = 1; i < pauses.length; i++) assert.ok(pauses[i] > 2 * pauses[i - 1], `${pauses}`);
assert.ok(pauses.length === 4 && pauses[3] > 120_000, `${pauses}`);
const before = asked;
await pass(3_600);
assert.equal(asked, before);

token = fresh;
client.connect();
await until("live", () => client.state.status === "live");
await until("the price", () => quotes.length);
assert.equal(quotes[0].price, "71000.10");
client.close();
console.log(`asked ${before} times, pauses ${pauses.map(Math.round)} ms`);
process.exit(0);
