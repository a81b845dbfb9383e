/** The React hooks, in React itself. Needs `esbuild`, `node-react` and `node-react-test-renderer`. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { startGateway, until } from "./support/gateway.js";

const folder = mkdtempSync(join(tmpdir(), "tickbridge-react-"));
after(() => rmSync(folder, { recursive: true }));

/** Node's own keeps the process alive for ever once React listens to it. */
globalThis.MessageChannel = class {
  port1 = {};
  port2 = { postMessage: () => setImmediate(() => this.port1.onmessage()) };
};

/** React, its renderer and our hooks in one bundle, so that all use the same React. */
async function bundle() {
  const clients = new URL("../../clients/js/src/", import.meta.url).pathname;
  const entry = join(folder, "entry.js");
  writeFileSync(
    entry,
    `export * as React from "react";
     export { act, create } from "react-test-renderer";
     export * from "${clients}react.js";
     export { createClient } from "${clients}index.js";`,
  );
  const out = join(folder, "bundle.mjs");
  execFileSync("esbuild", ["--bundle", "--format=esm", "--log-level=error", `--outfile=${out}`, entry], {
    env: { ...process.env, NODE_PATH: "/usr/share/nodejs" },
  });
  return import(out);
}

test("a quote renders its own component, and no other", async () => {
  const { React, act, create, TickbridgeContext, useQuote, useConnectionState, createClient } = await bundle();
  globalThis.IS_REACT_ACT_ENVIRONMENT = true;
  const gateway = await startGateway();
  const client = createClient({ url: gateway.url, shared: false });
  const renders = { 1: 0, 2: 0 };
  const Price = ({ id }) => {
    renders[id]++;
    return useQuote(id)?.price ?? "–";
  };
  const Status = () => useConnectionState().status;
  const h = React.createElement;
  const app = (ids) => h(TickbridgeContext.Provider, { value: client }, ids.map((id) => h(Price, { id, key: id })), h(Status));
  const settle = (what, check) => act(() => until(what, check));

  let tree;
  await act(async () => (tree = create(app(["1", "2"]))));
  await settle("live", () => client.state.status === "live");
  assert.deepEqual(tree.toJSON(), ["–", "–", "live"]);
  const before = { ...renders };
  await act(async () => {
    gateway.publish(1, { price: "71000.10" });
    await until("the quote", () => client.latest("1"));
  });
  assert.deepEqual(tree.toJSON(), ["71000.10", "–", "live"]);
  assert.deepEqual([renders[1] - before[1], renders[2] - before[2]], [1, 0]);

  await act(async () => tree.update(app(["2"])));
  await until("the end of 1", () => !gateway.only().topics.has("quote:1"));
  await act(async () => tree.unmount());
  client.close();
  await gateway.kill();
});
