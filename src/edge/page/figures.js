/** The tiles on top: what came, what was replaced on the way, and how the connection does. */

const WINDOW_S = 3;

export function createFigures($) {
  const seconds = [0];
  const sequences = new Map();
  let total = 0;
  let conflated = 0;
  let reconnections = 0;

  const write = (id, number, unit = "") => {
    const small = document.createElement("small");
    small.textContent = unit;
    // The space may break the line where the tile is narrow.
    $(id).replaceChildren(number, " ", small);
  };

  return {
    take({ id, seq, stale, initial }) {
      if (stale) return;
      total++;
      seconds[seconds.length - 1]++;
      if (!seq) return;
      const now = BigInt(seq);
      const before = sequences.get(id);
      sequences.set(id, now);
      // Whatever was missed before a snapshot was missed by us, not replaced on the way.
      if (before !== undefined && !initial && now > before) conflated += Number(now - before - 1n);
    },
    reconnected() {
      write("reconnections", `${++reconnections}`);
    },
    clock({ offsetMs, errorMs }) {
      write("clock", `${offsetMs >= 0 ? "+" : "−"}${Math.abs(offsetMs).toFixed(1)}`, `± ${errorMs.toFixed(1)} ms`);
    },
    /** Once a second. */
    tick(toPage) {
      const counted = seconds.reduce((sum, n) => sum + n) / seconds.length;
      seconds.push(0);
      if (seconds.length > WINDOW_S) seconds.shift();
      write("per-second", (counted < 10 ? counted.toFixed(1) : Math.round(counted).toLocaleString("en")).replace(/\.0$/, ""));
      write("total", total.toLocaleString("en"));
      write("conflated", sequences.size || !total ? conflated.toLocaleString("en") : "–");
      if (toPage === undefined) write("to-page", "–");
      else write("to-page", toPage.toFixed(1), "ms");
    },
  };
}
