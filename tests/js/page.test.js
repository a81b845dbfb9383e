import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { formatIds, parseIds } from "../../src/edge/page/ids.js";

test("lists of instruments are read as people write them", () => {
  for (const [text, ids] of [
    ["1-3, 42", ["1", "2", "3", "42"]],
    ["005,5", ["5"]],
    ["-2 - 0", ["-2", "-1", "0"]],
    ["9007199254740992-9007199254740993", ["9007199254740992", "9007199254740993"]],
    ["1-201", undefined],
    ["1-999999999999999999", undefined],
    ["9223372036854775808", undefined],
    ["3-1", undefined],
    ["", undefined],
    ["1;2", undefined],
    ["1.5", undefined],
  ]) {
    assert.deepEqual(parseIds(text), ids, text);
  }
  assert.equal(formatIds(["1", "2", "3", "42", "9007199254740992", "9007199254740993"]), "1-3, 42, 9007199254740992-9007199254740993");
});

test("the gateway serves each module that the page loads", () => {
  const folder = new URL("../../src/edge/page/", import.meta.url);
  const client = new URL("../../clients/js/src/", import.meta.url);
  const served = readFileSync(new URL("../../src/edge/page.rs", import.meta.url), "utf8");
  const modules = [
    ...readdirSync(folder).map((name) => ["own", name]).filter(([, name]) => name !== "index.html"),
    ...readdirSync(client).map((name) => ["client", name]).filter(([, name]) => name !== "react.js"),
  ];
  for (const [kind, name] of modules) assert.ok(served.includes(`${kind}!("${name}"`), `${kind} ${name}`);
});
