/** What is published: its size, its types, its parts. Needs `esbuild` and `node-typescript`. */

import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { gzipSync } from "node:zlib";

const root = new URL("../../clients/js/", import.meta.url).pathname;
const manifest = JSON.parse(readFileSync(`${root}package.json`));
const folder = mkdtempSync(join(tmpdir(), "tickbridge-js-"));
after(() => rmSync(folder, { recursive: true }));

for (const entry of ["src/index.js", "src/worker.js", "src/streams.js"]) {
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

const npm = spawnSync("npm", ["--version"]).status === 0;

test("what npm packs is all that a user needs, and nothing else", { skip: !npm && "NOT CHECKED: npm is not there" }, async () => {
  const [pack] = JSON.parse(execFileSync("npm", ["pack", "--json", "--pack-destination", folder], { cwd: root, stdio: ["ignore", "pipe", "ignore"] }));
  const expected = readdirSync(`${root}src`).map((name) => `src/${name}`);
  expected.push("CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "README.md", "package.json", "index.d.ts", "react.d.ts", "streams.d.ts");
  assert.deepEqual(pack.files.map(({ path }) => path).sort(), expected.sort());
  const modules = join(folder, "installed/node_modules");
  mkdirSync(modules, { recursive: true });
  execFileSync("tar", ["-xzf", join(folder, pack.filename), "-C", modules]);
  renameSync(join(modules, "package"), join(modules, "tickbridge"));
  const use = `import { createClient } from "tickbridge"; import { openStream, StreamError } from "tickbridge/streams";
    createClient({ url: "http://127.0.0.1:1", shared: false }).close();
    openStream("a", { url: "http://127.0.0.1:1" }).close();
    console.log(typeof StreamError);`;
  const said = execFileSync("node", ["--input-type=module", "--eval", use], { cwd: join(folder, "installed"), encoding: "utf8" });
  assert.equal(said, "function\n");
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
  "streams.mts": `
    import { openStream, StreamError, type StreamMessage, type StreamState } from "tickbridge/streams";
    const stream = openStream("answer-1", { url: "https://x.test", from: "1700000000000-4", transport: "ws", onState: (state: StreamState) => console.log(state.status, state.retryAt) });
    try {
      for await (const message of stream) {
        if (message.type === "entry") console.log(message.id, message.data?.length);
        else if (message.type === "gap") { const n: number | undefined = message.missing; console.log(n, message.before); }
        else if (message.type === "end") { const status: string = message.status; console.log(status); }
        else { const through: string = message.through; console.log(through); }
      }
    } catch (error) {
      if (error instanceof StreamError) openStream("answer-1", { from: error.cursor });
    }
    stream.reconnect(100); stream.close();
    // @ts-expect-error no such transport
    openStream("1", { transport: "auto" });
    // @ts-expect-error ids are text
    openStream(1);
    const any: StreamMessage["type"] = "entry";
    // @ts-expect-error read-only
    stream.cursor = any;`,
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
