/** What is published: its size, its types, its parts. Needs `esbuild` and `node-typescript`. */

import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { gzipSync } from "node:zlib";

const root = new URL("../../clients/js/", import.meta.url).pathname;
const manifest = JSON.parse(readFileSync(`${root}package.json`));
const folder = mkdtempSync(join(tmpdir(), "tickbridge-js-"));
after(() => rmSync(folder, { recursive: true }));

for (const entry of ["src/index.js", "src/worker.js"]) {
  test(`${entry} is under 6 KiB, minified and compressed`, () => {
    const bundle = execFileSync("esbuild", ["--bundle", "--minify", "--format=esm", root + entry]);
    const bytes = gzipSync(bundle, { level: 9 }).length;
    assert.ok(bytes < 6 * 1024, `${bytes} bytes`);
    assert.ok(bytes > 1024, `${bytes} bytes: not the whole`);
  });
}

test("the package depends on nothing, and everything it names exists", () => {
  assert.equal(manifest.dependencies, undefined);
  const named = JSON.stringify(manifest.exports).match(/\.\/[^"]+\.\w+/g);
  for (const path of [...named, ...manifest.files, "README.md"]) assert.ok(existsSync(root + path), path);
});

const USES = {
  "client.mts": `
    import { createClient, type Quote, type State } from "tickbridge";
    const client = createClient({ url: "https://x.test/api", token: async ({ refused }) => refused ? "new" : "old", transport: "auto" });
    const stop: () => void = client.subscribe(["1", 2n, 3], (quote: Quote) => {
      const price: string | undefined = quote.price;
      console.log(price, quote.stale, quote.latencyMs);
    }, { maxRateHz: 2 });
    const off = client.on("state", (state: State) => {
      if (state.status === "waiting") console.log(new Date(state.retryAt), state.reason);
      if (state.status === "signin") client.connect();
    });
    for await (const quote of client.quotes(9007199254740993n)) console.log(quote.id, client.clock?.offsetMs);
    stop(); off(); client.close();
    // @ts-expect-error not an id
    client.subscribe({}, () => {});
    // @ts-expect-error no such event
    client.on("nothing", () => {});
    // @ts-expect-error figures are text
    client.subscribe("1", (quote) => { const price: number = quote.price; });
    // @ts-expect-error no such transport
    createClient({ transport: "tcp" });`,
  "react.mts": `
    import { createElement } from "react";
    import { createClient, type Client } from "tickbridge";
    import { TickbridgeContext, useQuote, useConnectionState } from "tickbridge/react";
    function Price({ id }: { id: bigint }) {
      return createElement("b", null, useQuote(id, { maxRateHz: 1 })?.price, useConnectionState().status);
    }
    createElement((props: { value: Client | null }) => TickbridgeContext.Provider(props), { value: createClient() }, createElement(Price, { id: 1n }));
    // @ts-expect-error not an id
    useQuote({});`,
};

test("the types stand up to strict use, and refuse misuse", () => {
  const modules = join(folder, "node_modules");
  mkdirSync(modules);
  symlinkSync(root, join(modules, "tickbridge"));
  // Debian's types of React lack what they import; these are the parts that we touch.
  mkdirSync(join(modules, "react"));
  writeFileSync(join(modules, "react/package.json"), '{ "types": "index.d.ts" }');
  writeFileSync(
    join(modules, "react/index.d.ts"),
    `export interface Context<T> { Provider(props: { value: T }): null }
     export function createElement<P>(type: string | ((props: P) => unknown), props: P | null, ...children: unknown[]): unknown;`,
  );
  for (const [name, source] of Object.entries(USES)) writeFileSync(join(folder, name), source);
  const strict = ["--strict", "--preserveSymlinks", "--noEmit", "--target", "es2022", "--module", "node16", "--moduleResolution", "node16"];
  const { status, stdout } = spawnSync("tsc", [...strict, ...Object.keys(USES)], { cwd: folder, encoding: "utf8" });
  assert.equal(status, 0, stdout);
});
