/** R66, the clients' part: whom a proxy cuts at one moment comes back spread over several seconds. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { createClient } from "../../clients/js/src/index.js";
import { startGateway, until } from "./support/gateway.js";

const CROWD = 200;

for (const transport of ["ws", "sse"]) {
  test(`R66: a crowd that is cut at once comes back spread over seconds, over ${transport}`, async () => {
    const gateway = await startGateway();
    // The real one names between one and three seconds; the client takes the longer.
    gateway.retryMs = 1_000;
    const pauses = [];
    const clients = Array.from({ length: CROWD }, () => createClient({ url: gateway.url, shared: false, transport }));
    for (const client of clients) {
      client.subscribe("1", () => {});
      client.on("state", ({ status, retryAt }) => status === "waiting" && pauses.push(retryAt - Date.now()));
    }
    await until("all are live", () => clients.every((client) => client.state.status === "live"));
    for (const session of [...gateway.sessions]) session.cut();
    await until("all are lost", () => pauses.length >= CROWD);
    await until("all are back", () => clients.every((client) => client.state.status === "live"));
    assert.equal(gateway.sessions.size, CROWD);

    const first = pauses.slice(0, CROWD).sort((a, b) => a - b);
    // Uniform over three seconds: no half second sees twice its share, and one user waits half of it on average.
    for (let from = 0; from < 3_000; from += 500) {
      const n = first.filter((ms) => ms >= from - 1 && ms < from + 499).length;
      assert.ok(n < CROWD / 3, `${n} of ${CROWD} come within half a second: ${first}`);
    }
    assert.ok(first.at(-1) > 2_000 && first.at(-1) <= 3_000, `${first.at(-1)}`);
    assert.ok(first[CROWD / 2] < 2_000, `${first[CROWD / 2]}`);
    for (const client of clients) client.close();
    await gateway.kill();
  });
}
