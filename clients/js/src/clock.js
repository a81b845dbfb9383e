/**
 * The difference between the gateway's clock and ours, with a bound on its error.
 *
 * A ping that left at a, was stamped s by the gateway and came back at b proves that the difference
 * is s - (a + b) / 2, wrong by at most half the round trip; another millisecond covers stamps that
 * are cut to milliseconds. The shortest of the last few round trips says it best.
 */

const KEPT = 8;

export function createClock() {
  let samples = [];
  let best;
  return {
    /** Takes one answered ping. */
    sample(sentAt, serverAt, now) {
      const sample = { offsetMs: serverAt - (sentAt + now) / 2, errorMs: (now - sentAt) / 2 + 1 };
      if (!(sample.errorMs >= 1)) return;
      // Two bounds that don't meet: one of the clocks was set meanwhile.
      if (best && Math.abs(sample.offsetMs - best.offsetMs) > sample.errorMs + best.errorMs) samples = [];
      samples = [...samples.slice(1 - KEPT), sample];
      best = samples.reduce((a, b) => (b.errorMs < a.errorMs ? b : a));
    },
    /** `{ offsetMs, errorMs }`: gateway's time = our time + offset. Undefined before the first answer. */
    get best() {
      return best;
    },
    get settled() {
      return samples.length > 3;
    },
  };
}
