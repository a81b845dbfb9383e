/**
 * tickbridge: live prices from a tickbridge gateway.
 *
 * This file is what a page holds: its subscriptions and the newest quote of each. Tabs of one browser
 * share the connection behind it (`shared`, `hub`).
 */

import { createHub } from "./hub.js";
import { canShare, joinShared } from "./shared.js";
import { normalise } from "./wire.js";

export function createClient({
  url = "",
  token,
  transport = "auto",
  shared = true,
  heartbeatMs = 20_000,
  minBackoffMs = 3_000,
  maxBackoffMs = 30_000,
  credentials = "same-origin",
} = {}) {
  const options = {
    url: new URL(url || "/", globalThis.location).href.replace(/^ws/, "http").replace(/\/$/, ""),
    transport,
    heartbeatMs,
    minBackoffMs,
    maxBackoffMs,
    credentials,
  };
  const wants = new Map();
  const latest = new Map();
  const listeners = {};
  const closers = new Set();
  const client = {
    state: { status: "idle" },
    clock: undefined,
    subscribe,
    quotes,
    latest: (id) => latest.get(normalise(id)),
    on,
    connect: () => hub.tell({ connect: 1 }),
    setTransport: (to) => hub.tell({ transport: to }),
    close,
  };
  let scheduled;

  // A listener that throws must not keep the others from their quotes.
  const call = (listener, value) => {
    try {
      listener(value);
    } catch (error) {
      (globalThis.reportError ?? console.error)(error);
    }
  };
  const emit = (name, value) => [...(listeners[name] ?? [])].forEach((listener) => call(listener, value));

  function hear({ quote, ask, refused, ...news }) {
    if (quote && wants.has(quote.id)) {
      latest.set(quote.id, quote);
      for (const want of [...wants.get(quote.id)]) call(want.onQuote, quote);
    }
    if (ask) answer(ask, refused);
    for (const [name, value] of Object.entries(news)) {
      if (name === "state" || name === "clock") client[name] = value;
      emit(name, value);
    }
  }

  async function answer(ask, refused) {
    try {
      hub.tell({ answer: ask, token: await token?.({ refused }) });
    } catch (error) {
      hub.tell({ answer: ask, error: `${error}` });
    }
  }

  const alone = () => createHub(options).join(hear);
  const join = () => {
    try {
      if (shared && canShare()) return joinShared(options, shared, hear, rejoin(alone));
    } catch {
      // The worker's script is of another origin, or workers are forbidden.
    }
    return alone();
  };
  const rejoin = (how) => () => {
    hub = how();
    if (wants.size) tellWants();
  };
  let hub = join();

  function tellWants() {
    scheduled = 0;
    // Only now, so that whoever unsubscribes and subscribes in one turn keeps the quote.
    for (const id of latest.keys()) if (!wants.has(id)) latest.delete(id);
    const rate = (set) => {
      const rates = [...set].map((want) => want.rate);
      return rates.includes(0) ? 0 : Math.max(...rates);
    };
    hub.tell({ want: [...wants].map(([id, set]) => [id, rate(set)]) });
  }

  /** All changes of one turn of the event loop make one message. */
  function schedule() {
    if (!scheduled) queueMicrotask(() => scheduled && tellWants());
    scheduled = 1;
  }

  function subscribe(ids, onQuote, { maxRateHz = 0 } = {}) {
    const mine = new Set([ids].flat().map(normalise));
    const want = { onQuote, rate: maxRateHz };
    for (const id of mine) {
      if (!wants.has(id)) wants.set(id, new Set());
      wants.get(id).add(want);
      const known = latest.get(id);
      if (known) queueMicrotask(() => wants.get(id)?.has(want) && latest.get(id) === known && call(onQuote, known));
    }
    schedule();
    return () => {
      for (const id of mine) {
        const set = wants.get(id);
        if (!set?.delete(want) || set.size) continue;
        wants.delete(id);
      }
      schedule();
    };
  }

  function quotes(id, how) {
    return {
      [Symbol.asyncIterator]() {
        let quote, wake, done;
        const stop = subscribe(id, (newest) => ((quote = newest), wake?.()), how);
        const finish = () => {
          done = true;
          closers.delete(finish);
          stop();
          wake?.();
        };
        closers.add(finish);
        return {
          async next() {
            while (!quote && !done) await new Promise((resolve) => (wake = resolve));
            const value = done ? undefined : quote;
            quote = undefined;
            return { value, done: !value };
          },
          async return(value) {
            finish();
            return { value, done: true };
          },
        };
      },
    };
  }

  function on(name, listener) {
    (listeners[name] ??= new Set()).add(listener);
    return () => listeners[name].delete(listener);
  }

  const target = globalThis.addEventListener ? globalThis : new EventTarget();
  const events = {
    online: () => hub.tell({ wake: "online" }),
    offline: () => client.state.status === "live" && hub.tell({ wake: "offline" }),
    visibilitychange: () => document.visibilityState === "visible" && hub.tell({ wake: "visible" }),
    // A page in the back-forward cache must hold neither lock nor connection.
    pagehide: () => hub.leave(),
    pageshow: (event) => event.persisted && rejoin(join)(),
  };
  // `visibilitychange` bubbles from the document to the window.
  for (const name in events) target.addEventListener(name, events[name]);

  function close() {
    for (const name in events) target.removeEventListener(name, events[name]);
    closers.forEach((finish) => finish());
    wants.clear();
    latest.clear();
    scheduled = 0;
    hub.leave();
    hub = { tell() {}, leave() {} };
    hear({ state: { status: "closed", reason: "client" } });
  }

  return client;
}
