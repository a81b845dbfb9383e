/**
 * What travels between gateway and browser: exact numbers, ids, versions.
 *
 * Prices and ids are decimal text from end to end. JavaScript's numbers would round 71000.10 to
 * 71000.1 and make neighbours above 2^53 the same.
 */

const PREFIX = "quote:";
const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d[-+.\deE]*/g;

/** Reads JSON with every number as the text that the sender wrote. */
export const parse = (text) =>
  JSON.parse(text.replace(TOKENS, (token) => (token[0] === '"' ? token : `"${token}"`)));

export const topicOf = (id) => PREFIX + id;
export const idOf = (topic) => topic.slice(PREFIX.length);

/** Gives an id its one spelling. Refuses what can't be an instrument, and numbers that are rounded. */
export function normalise(id) {
  if (typeof id === "number" && !Number.isSafeInteger(id)) {
    throw new RangeError(`${id} is not exact as a number: pass the id as a string or BigInt`);
  }
  if (!/^-?\d+$/.test(id) || BigInt.asIntN(64, BigInt(id)) !== BigInt(id)) {
    throw new RangeError(`not an instrument id: ${id}`);
  }
  return `${BigInt(id)}`;
}

const number = (text) => (text === undefined ? undefined : Number(text));

/** Makes a quote of an `event` message. */
export function quoteOf({ topic, data }) {
  const { stockId, eventTs, publishedAt, arrivedAt, emittedAt, initial, at, ...rest } = data;
  return {
    ...rest,
    id: idOf(topic),
    at: Array.isArray(at) ? at.map(Number) : at,
    eventTs: number(eventTs),
    publishedAt: number(publishedAt),
    arrivedAt: number(arrivedAt),
    emittedAt: number(emittedAt),
    initial: !!initial,
    stale: false,
    receivedAt: Date.now(),
  };
}

/**
 * Whether `quote` may follow `shown`. `seq` decides where both carry one, otherwise the source's
 * time, otherwise the order of arrival.
 *
 * A snapshot with a lower `seq` but a later time follows all the same: the numbering began anew, and
 * refusing it would freeze the price until the new numbers pass the old ones.
 */
export function follows(quote, shown) {
  const later = quote.eventTs - shown.eventTs;
  if (quote.seq && shown.seq) {
    const steps = BigInt(quote.seq) - BigInt(shown.seq);
    return steps > 0n || (quote.initial && (later > 0 || (shown.stale && !steps)));
  }
  // At the same time a snapshot says nothing new, except that the price is good again.
  return !(later < 0) && !(later === 0 && quote.initial && !shown.stale);
}
