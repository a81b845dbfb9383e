/**
 * Where tabs meet the one connection: who wants what, and what each is shown.
 *
 * A page joins with a function that takes messages, and is given one to send them. In a SharedWorker
 * every tab of the browser joins the same hub; without one, each page has a hub of its own.
 *
 * Invariants:
 * - Per instrument, no page is shown an older quote after a newer one, over all reconnections.
 * - Everything shown is marked stale while it can't be vouched for.
 */

import { createConnection } from "./connection.js";
import { follows, idOf, quoteOf } from "./wire.js";

/** Without subscriptions the session is kept this long, for a page that is only rebuilding its rows. */
const LINGER_MS = 10_000;
/** Within this the gateway has sent what changed since a cursor: its `catch_up.deadline`. */
const CATCH_UP_MS = 2_000;
/** A frozen tab doesn't answer; the next one is asked for the token after this. */
const ASK_MS = 4_000;

export function createHub(options) {
  const pages = new Map();
  const wanted = new Map();
  const shown = new Map();
  /** The session that each was shown in; within one, the gateway keeps the order. */
  const shownIn = new Map();
  /** Ids whose source the gateway called stale. */
  const silent = new Set();
  const asked = new Map();
  let asks = 0;
  let session = 0;
  let clock, linger;

  const everyone = (message) => pages.forEach((_, post) => post(message));

  function show(quote) {
    shown.set(quote.id, quote);
    pages.forEach((wants, post) => wants.has(quote.id) && post({ quote }));
  }

  function mark(id, stale) {
    const quote = shown.get(id);
    if (quote && quote.stale !== stale) show({ ...quote, stale });
  }

  const connection = createConnection(options, wanted, {
    async token(refused) {
      // The page that was seen last comes first: its user is there to sign in.
      for (const post of [...pages.keys()].reverse()) {
        const ask = ++asks;
        const answer = await new Promise((resolve) => {
          asked.set(ask, resolve);
          post({ ask, refused });
          if (pages.size > 1) setTimeout(resolve, ASK_MS);
        });
        asked.delete(ask);
        if (answer?.error) break;
        if (answer) return answer.token;
      }
      throw Error("no token");
    },
    state(state) {
      if (state.status !== "live") {
        silent.clear();
        for (const id of shown.keys()) mark(id, true);
      }
      everyone({ state });
    },
    clock(best) {
      clock = best;
      everyone({ clock });
    },
    message(message, first, resumed) {
      const { type, topic } = message;
      if (type === "event") {
        const quote = quoteOf(message);
        const before = shown.get(quote.id);
        if (!wanted.has(quote.id)) return;
        if (before && shownIn.get(quote.id) !== session && !follows(quote, before)) return;
        shownIn.set(quote.id, session);
        quote.stale = silent.has(quote.id);
        if (clock) {
          quote.latencyMs = quote.receivedAt + clock.offsetMs - quote.emittedAt;
          quote.latencyErrorMs = clock.errorMs;
        }
        show(quote);
      } else if (type === "status") {
        const stale = message.state === "stale";
        silent[stale ? "add" : "delete"](idOf(topic));
        mark(idOf(topic), stale);
      } else if (type === "subscribe") {
        if (first) session++;
        const { rejected = [], rejected_reasons: reasons = [], subscribed } = message;
        rejected.forEach((topic, at) => everyone({ rejected: { id: idOf(topic), reason: reasons[at] } }));
        if (resumed) {
          const { state } = connection;
          // What doesn't come within the deadline hasn't changed while we were away.
          setTimeout(() => {
            if (state !== connection.state) return;
            for (const id of subscribed.map(idOf)) if (!silent.has(id)) mark(id, false);
          }, CATCH_UP_MS);
        }
      } else if (type === "error") everyone({ error: message });
    },
  });

  function rewant() {
    wanted.clear();
    pages.forEach((wants) =>
      wants.forEach((rate, id) => {
        const other = wanted.get(id);
        // Unlimited beats any limit.
        wanted.set(id, other === 0 || rate === 0 ? 0 : Math.max(rate, other ?? 0));
      }),
    );
    for (const id of shown.keys()) {
      if (wanted.has(id)) continue;
      shown.delete(id);
      shownIn.delete(id);
    }
    clearTimeout(linger);
    if (!wanted.size && connection.state.status !== "idle") linger = setTimeout(connection.stop, LINGER_MS);
    connection.changed();
  }

  return {
    /** Lets a page in; `post` takes what it is told. Gives what it says, and how it leaves. */
    join(post) {
      pages.set(post, new Map());
      post({ state: connection.state });
      if (clock) post({ clock });
      return {
        tell({ want, answer, connect, transport, wake, ...rest }) {
          const before = pages.get(post);
          if (!before) return;
          if (want) {
            const wants = new Map(want);
            pages.set(post, wants);
            rewant();
            for (const id of wants.keys()) {
              if (shown.has(id) && !before.has(id)) post({ quote: shown.get(id) });
            }
          }
          asked.get(answer)?.(rest);
          if (connect) connection.connect();
          if (transport) connection.use(transport);
          if (wake) {
            pages.delete(post);
            pages.set(post, before);
            connection.wake();
          }
        },
        leave() {
          pages.delete(post);
          if (pages.size) rewant();
          else {
            wanted.clear();
            shown.clear();
            clearTimeout(linger);
            connection.stop();
          }
        },
      };
    },
  };
}
