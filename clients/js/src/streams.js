/**
 * Lossless streams, such as the tokens of an answer: every entry once and in order, through every reconnection, or
 * word of what is missing.
 *
 * Invariants:
 * - The cursor is the id of the last message that had one and was taken in; each connection begins behind it.
 * - What waits to be read is bounded: a slow reader makes SSE wait, and costs a WebSocket its connection, since
 *   browsers can't make that wait. Nothing is lost by either.
 * - A stream ends in one of two ways: its `end` entry, or an error that says why it can't go on.
 */

import { openSse, openWebSocket, refusalOf } from "./transport.js";

/** An attempt that has no answer by then has failed. */
const CONNECT_MS = 10_000;
/** Messages that may wait for the reader. */
const MOST_UNREAD = 1_000;
/** Refusals of the token in a row, each of another one, until nobody believes in a next. */
const MAX_REFUSALS = 5;
/** Trying again would only repeat these. */
const FINAL_STATUS = { 400: "bad_request", 403: "forbidden", 404: "unknown_stream" };
const FINAL_CLOSES = ["unknown_stream", "producer_timeout", "origin_denied", "forbidden", "bad_request"];
const TOKEN_CLOSES = ["auth_error", "auth_timeout", "token_expired"];

/** Why a stream can't go on. With `cursor` it can be opened again where it stopped. */
export class StreamError extends Error {
  constructor(reason, cursor) {
    super(`the stream can't go on: ${reason}`);
    this.name = "StreamError";
    this.reason = reason;
    this.cursor = cursor;
  }
}

export function openStream(
  id,
  {
    url = "",
    from = "0",
    token: askToken,
    transport = "sse",
    heartbeatMs = 20_000,
    minBackoffMs = 1_000,
    maxBackoffMs = 30_000,
    credentials = "same-origin",
    onState,
  } = {},
) {
  const base = new URL(url || "/", globalThis.location).href.replace(/^ws/, "http").replace(/\/$/, "");
  const none = { close() {} };
  const unread = [];
  let state = { status: "connecting" };
  let cursor = from;
  let link = none;
  let timer, watch, wake, room, token, refused, outcome;
  let heardAt = 0;
  let notBefore = 0;
  let retryMs = 0;
  let failures = 0;
  let refusals = 0;
  /** Cut by ourselves, until the reader has caught up. */
  let full = false;

  function tell(status, more) {
    if (outcome && status !== "closed" && status !== "ended") return;
    state = { status, ...more };
    onState?.(state);
  }

  function drop() {
    clearTimeout(timer);
    clearInterval(watch);
    const old = link;
    link = none;
    old.close();
    // Whoever waits there belongs to the link that is gone.
    room?.();
    room = undefined;
  }

  /** Over, for good: with an error, or without one. */
  function finish(status, reason, error) {
    if (outcome) return;
    outcome = { error };
    drop();
    globalThis.removeEventListener?.("online", online);
    tell(status, { reason });
    wake?.();
  }

  const fail = (reason) => finish("closed", reason, new StreamError(reason, cursor));

  const give = (message) => {
    unread.push(message);
    wake?.();
  };

  async function attempt() {
    if (outcome) return;
    drop();
    heardAt = retryMs = 0;
    tell("connecting");
    // Also stands for the link while there is none yet: whoever drops it has ended this attempt.
    const mine = (link = { ...none });
    const only = (act) => (value) => link === mine && act(value);
    timer = setTimeout(end, CONNECT_MS, { reason: "timeout" });
    let query = `?id=${encodeURIComponent(id)}&from=${encodeURIComponent(cursor)}`;
    try {
      token = await askToken?.({ refused });
    } catch {
      return only(end)({ reason: "token_source" });
    }
    if (link !== mine) return;
    // The same one again would only be refused again.
    if (refused && token === refused) return fail("unauthorized");
    if (token && transport === "ws") {
      // A browser's WebSocket can't carry a token, and a URL must not.
      try {
        const headers = { authorization: `Bearer ${token}` };
        const answer = await fetch(`${base}/market/ticket`, { method: "POST", headers, credentials });
        if (!answer.ok) return only(end)(refusalOf(answer));
        query += `&ticket=${(await answer.json()).ticket}`;
      } catch {
        return only(end)({});
      }
      if (link !== mine) return;
    }
    const ears = {
      open: only(opened),
      text: only((text) => hear(JSON.parse(text))),
      heard: only(() => (heardAt = Date.now())),
      cursor() {},
      comment() {},
      retry: only((ms) => (retryMs = ms || 0)),
      room: () => (unread.length < MOST_UNREAD ? undefined : new Promise((resolve) => (room = resolve))),
      end: only(end),
    };
    const way = `${base}${transport === "ws" ? "/ws/stream" : "/stream/sse"}${query}`;
    try {
      Object.assign(mine, transport === "ws" ? openWebSocket(way, ears) : openSse(way, { token, credentials }, ears));
    } catch {
      end({ reason: "blocked" });
    }
  }

  function opened() {
    clearTimeout(timer);
    heardAt = Date.now();
    // Also after sleep: what is cut too early costs a reconnection and nothing else.
    watch = setInterval(() => {
      if (!room && Date.now() - heardAt > 2 * heartbeatMs + 1_000) end({ reason: "silent" });
    }, heartbeatMs / 4);
    tell("live");
  }

  function hear(message) {
    const { type } = message;
    heardAt = Date.now();
    refused = undefined;
    refusals = 0;
    if (type === "entry" || type === "end" || type === "gap" || type === "lost") {
      failures = 0;
      cursor = message.id ?? cursor;
      give(message);
      if (type === "end") return finish("ended", message.status);
      if (transport === "ws" && unread.length >= MOST_UNREAD) {
        full = true;
        drop();
        tell("waiting", { reason: "unread" });
      }
    } else if (type === "begin") cursor = message.id;
    else if (type === "status") tell(message.state, { reason: message.reason });
    else if (type === "reconnect") notBefore = heardAt + message.after_ms;
    else if (type === "close") end(message);
  }

  function end({ code, status, reason, afterMs = 0 }) {
    drop();
    reason ||= FINAL_STATUS[status] || (status ? `http_${status}` : code ? `code_${code}` : "unreachable");
    // The stream was over before we came.
    if (status === 204 || code === 1000) return finish("ended");
    if (FINAL_STATUS[status] || FINAL_CLOSES.includes(reason)) return fail(reason);
    const told = !!(notBefore || afterMs > 0);
    if (status === 401 || (code === 1008 && TOKEN_CLOSES.includes(reason))) {
      refused = token;
      if (++refusals >= MAX_REFUSALS || !token) return fail("unauthorized");
      if (refusals === 1) return attempt();
    }
    // Without a cursor nobody can ask for what comes meanwhile; that is said instead.
    if (cursor === "$" && heardAt) give({ type: "gap", after: "$" });
    const backoff = Math.random() * Math.min(maxBackoffMs, Math.max(minBackoffMs, retryMs) * 2 ** failures++);
    const pause = notBefore ? Math.max(0, notBefore - Date.now()) : afterMs + backoff;
    notBefore = 0;
    wait(pause, reason, told);
  }

  function wait(ms, reason, told) {
    timer = setTimeout(attempt, ms);
    tell("waiting", { reason, retryAt: Date.now() + ms, told });
  }

  const online = () => state.status === "waiting" && !state.told && !full && attempt();

  async function next() {
    while (!unread.length) {
      if (outcome?.error) throw outcome.error;
      if (outcome) return { value: undefined, done: true };
      await new Promise((resolve) => (wake = resolve));
    }
    const value = unread.shift();
    if (unread.length < MOST_UNREAD / 2) {
      if (room) heardAt = Date.now();
      room?.();
      room = undefined;
      if (full) {
        full = false;
        attempt();
      }
    }
    return { value, done: false };
  }

  globalThis.addEventListener?.("online", online);
  // Not before the caller holds the stream, of which `onState` may speak.
  queueMicrotask(attempt);
  return {
    get state() {
      return state;
    },
    /** Where to go on: give it as `from`, here or on any other replica. */
    get cursor() {
      return cursor;
    },
    /** Drops the connection and goes on from the cursor, at once or after `ms`. */
    reconnect(ms = 0) {
      if (outcome) return;
      drop();
      full = false;
      wait(ms, "reconnect", true);
    },
    close() {
      unread.length = 0;
      finish("closed", "client");
    },
    [Symbol.asyncIterator]() {
      return {
        next,
        async return(value) {
          unread.length = 0;
          finish("closed", "client");
          return { value, done: true };
        },
      };
    },
  };
}
