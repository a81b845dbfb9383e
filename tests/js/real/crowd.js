/**
 * R66 with the real client: a crowd behind the proxies says what becomes of it, a line per event. Arguments: URL,
 * size, the price that ends it.
 */

import { createClient } from "../../../clients/js/src/index.js";
import { until } from "./support.js";

const [url, size, last] = process.argv.slice(2);
const prices = new Map();
const pauses = [];
const clients = Array.from({ length: Number(size) }, () => createClient({ url, shared: false, transport: "ws" }));
let lost = 0;
for (const client of clients) {
  client.subscribe("1", ({ price, stale }) => !stale && prices.set(client, price));
  client.on("state", ({ status, retryAt }) => {
    if (status !== "waiting") return;
    if (!lost++) console.log("lost");
    pauses.push(Math.round(retryAt - Date.now()));
  });
}
const all = (check) => () => clients.every(check);
await until("all are live", all((client) => client.state.status === "live" && prices.has(client)));
pauses.length = lost = 0;
console.log("live");
await until("all were lost", () => lost >= clients.length);
await until("all are back", all((client) => client.state.status === "live" && prices.get(client) === last));
console.log(JSON.stringify(pauses.slice(0, clients.length)));
// The sessions are counted before the crowd goes.
process.stdin.on("end", () => process.exit(0)).resume();
