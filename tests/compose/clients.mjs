// Many clients of the library in one process: node clients.mjs URL TOKEN N ID…
//
// A line on standard input is answered by a line of JSON: how many are live, when sessions were lost and came back since
// the line before (ms since the epoch), and how many clients show which price of the first instrument.
import { createClient } from "../../clients/js/src/index.js";
import { createInterface } from "node:readline";

const [url, token, n, ...ids] = process.argv.slice(2);
let lost = [];
let back = [];
const clients = Array.from({ length: Number(n) }, () => {
  const client = createClient({ url, token: () => token, shared: false, transport: "ws" });
  const entry = { live: false, price: undefined };
  client.on("state", ({ status }) => {
    if (status === "live" && !entry.live) back.push(Date.now());
    if (status !== "live" && entry.live) lost.push(Date.now());
    entry.live = status === "live";
  });
  client.subscribe(ids, (quote) => {
    if (quote.id === ids[0]) entry.price = quote.price;
  });
  return entry;
});

for await (const _ of createInterface({ input: process.stdin })) {
  const prices = {};
  for (const { live, price } of clients) if (live) prices[price] = (prices[price] ?? 0) + 1;
  console.log(JSON.stringify({ live: clients.filter(({ live }) => live).length, lost, back, prices }));
  lost = [];
  back = [];
}
process.exit(0);
