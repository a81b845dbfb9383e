/** Lists of instruments as people write them: `1-20, 42`. Ids stay decimal text or BigInt throughout. */

const MOST = 200;

/** The ids of a list, each once, or undefined if it is none. */
export function parseIds(text) {
  const ids = new Set();
  for (const part of text.split(",").map((part) => part.trim()).filter(Boolean)) {
    const [, from, to = from] = /^(-?\d{1,19})(?:\s*-\s*(-?\d{1,19}))?$/.exec(part) ?? [];
    if (from === undefined) return undefined;
    const last = BigInt(to);
    for (let id = BigInt(from); id <= last; id++) {
      ids.add(`${id}`);
      if (ids.size > MOST) return undefined;
    }
  }
  const valid = [...ids].every((id) => BigInt.asIntN(64, BigInt(id)) === BigInt(id));
  return ids.size && valid ? [...ids] : undefined;
}

/** The shortest way to write them. */
export function formatIds(ids) {
  const runs = [];
  for (const id of ids.map(BigInt)) {
    const run = runs.at(-1);
    if (run && run[1] + 1n === id) run[1] = id;
    else runs.push([id, id]);
  }
  return runs.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(", ");
}
