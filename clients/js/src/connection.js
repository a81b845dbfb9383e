/**
 * Keeps one session with the gateway alive: chooses the transport, signs in, subscribes, notices
 * silence, and decides after each end whether, when and how to try again.
 *
 * Invariants:
 * - At most one link is open; a link that was given up is never listened to again.
 * - The token is asked for before each attempt, and a refused one is not tried for ever.
 * - What the gateway orders (`reconnect.after_ms`, `Retry-After`, 204) comes before what we compute.
 *
 * Not here: who wants which instrument, and what is shown of it (`hub`).
 */

import { createClock } from "./clock.js";
import { openSse, openWebSocket } from "./transport.js";
import { parse, topicOf } from "./wire.js";

/** An attempt that has no answer by then has failed. */
const CONNECT_MS = 10_000;
/** After this long in service an end counts as the first failure again. */
const STABLE_MS = 10_000;
/** Refusals of the token in a row until the user must sign in again. */
const MAX_REFUSALS = 5;
/** A network that blocks WebSocket is asked again after this. */
const BLOCKED_MS = 600_000;
/** How long nothing may come before the answer to an urgent ping: after sleep, or when the page comes into view. */
const URGENT_MS = 3_000;
/** Changes of subscriptions are gathered this long; the gateway takes 20 messages a second. */
const GATHER_MS = 200;
/** Topics in one message; keeps it below the gateway's 64 KiB. */
const CHUNK = 500;

const TOKEN_CLOSES = ["auth_error", "auth_timeout", "token_expired"];
/** Trying again would only repeat these. */
const FINAL_CLOSES = ["origin_denied", "message_too_big"];
const FINAL_STATUS = { 204: "stopped", 400: "bad_request", 403: "forbidden" };

/** 5 s, 20 s, 80 s, 5 min, and a little more so that nobody keeps step. */
const refusalPause = (refusals) => Math.min(300_000, 1_250 * 4 ** refusals) * (1 + Math.random() / 4);

/**
 * `wanted` maps each wanted id to its rate, 0 for unlimited. `on.token(refused)` promises the token;
 * `on.state`, `on.clock` and `on.message(message, first, resumed)` are told what happens; `first` marks the first
 * answer of a session, `resumed` one that goes on from a cursor.
 */
export function createConnection(
  { url, transport: mode, heartbeatMs, minBackoffMs, maxBackoffMs, credentials },
  wanted,
  on,
) {
  const clock = createClock();
  const tickMs = heartbeatMs / 8;
  const none = { close() {} };
  let state = { status: "idle" };
  let link = none;
  let transport, token, refused, cursor, resumed, timer, ticker, syncTimer;
  // Moments, 0 for never.
  let startedAt, dialledAt, heardAt, liveAt, pingedAt, urgentAt, answerBy, tickedAt, refreshAt;
  let blockedUntil = 0;
  let notBefore = 0;
  let syncedAt = 0;
  let retryMs = 0;
  let failures = 0;
  let refusals = 0;
  let unanswered = 0;
  let sent = new Map();

  const send = (message) => link.send(JSON.stringify(message));

  function tell(status, more) {
    state = { status, transport, ...more };
    on.state(state);
  }

  function drop() {
    clearTimeout(timer);
    clearTimeout(syncTimer);
    clearInterval(ticker);
    syncTimer = 0;
    const old = link;
    link = none;
    old.close();
  }

  function wait(ms, reason, told) {
    timer = setTimeout(attempt, ms, 0, true);
    tell("waiting", { reason, told, retryAt: Date.now() + ms });
  }

  /** `patient` has waited out the pause that a refused token costs; `quiet` changes topics only. */
  async function attempt(to, patient, quiet) {
    if (!wanted.size) return stop();
    drop();
    const now = Date.now();
    transport = to || (mode !== "auto" ? mode : now < blockedUntil ? "sse" : "ws");
    startedAt = now;
    dialledAt = heardAt = liveAt = pingedAt = urgentAt = answerBy = refreshAt = retryMs = 0;
    if (!quiet) tell("connecting");
    // Also stands for the link while there is none yet: whoever drops it has ended this attempt.
    const mine = (link = { ...none });
    timer = setTimeout(end, CONNECT_MS, { reason: "timeout" });
    try {
      token = await on.token(refused);
    } catch {
      if (link === mine) end({ reason: "token_source" });
      return;
    }
    if (link !== mine) return;
    if (refused && token === refused && !patient) {
      drop();
      return wait(refusalPause(refusals), "token_refused");
    }
    const only = (act) => (value) => link === mine && act(value);
    const ears = {
      open: only(greet),
      text: only((text) => hear(parse(text))),
      heard: only(alive),
      cursor: only((id) => (cursor = id)),
      retry: only((ms) => (retryMs = ms || 0)),
      comment: only((text) => compare(dialledAt, text.split("open ")[1])),
      end: only(end),
    };
    dialledAt = Date.now();
    sent = new Map(wanted);
    resumed = transport === "sse" && !!cursor;
    try {
      Object.assign(
        mine,
        transport === "ws" ? openWebSocket(`${url}/market/ws`, ears) : openSse(sseUrl(), { token, credentials }, ears),
      );
    } catch {
      // The browser forbids it, such as ws: on an https: page.
      end({ reason: "blocked" });
    }
  }

  function sseUrl() {
    const rates = [...sent.values()];
    const query = [`topics=${[...sent.keys()].map(topicOf)}`];
    if (!rates.includes(0)) query.push(`max_rate_hz=${Math.max(...rates)}`);
    if (cursor) query.push(`last_event_id=${encodeURIComponent(cursor)}`);
    return `${url}/market/sse?${query.join("&")}`;
  }

  function greet() {
    tickedAt = heardAt = Date.now();
    ticker = setInterval(tick, tickMs);
    if (!link.send) return;
    cursor = undefined;
    sent = new Map();
    if (token) send({ type: "auth", token });
    else sync();
  }

  function alive() {
    heardAt = Date.now();
    unanswered = 0;
    // What was under way before an urgent ping doesn't answer it; the pong may be behind it.
    answerBy = urgentAt && heardAt + URGENT_MS;
  }

  /** `sentAt` our time, `stamp` the gateway's. */
  function compare(sentAt, stamp) {
    if (!(stamp > 0)) return;
    clock.sample(sentAt, Number(stamp), Date.now());
    on.clock(clock.best);
  }

  function hear(message) {
    const { type } = message;
    if (type === "pong" && Number(message.ts) === urgentAt) urgentAt = 0;
    alive();
    if (type === "ping") send({ type: "pong" });
    else if (type === "pong") compare(Number(message.ts), message.server_ts);
    else if (type === "auth") {
      refreshAt = refreshTime();
      if (!liveAt) sync();
    } else if (type === "close") end({ code: Number(message.code), reason: message.reason });
    else if (type === "reconnect") notBefore = heardAt + Number(message.after_ms);
    else if (type === "error" && message.code === "UNAUTHORIZED") end({ code: 1008, reason: "auth_error" });
    else if (type === "error" && message.code === "INTERNAL") end({ code: 1011, reason: "internal" });
    else {
      const first = type === "subscribe" && !liveAt;
      if (first) {
        clearTimeout(timer);
        liveAt = heardAt;
        refused = undefined;
        // Only where WebSocket failed does `auto` come to live on SSE.
        blockedUntil = transport === "sse" ? liveAt + BLOCKED_MS : 0;
        if (state.status !== "live") tell("live");
      }
      on.message(message, first, first && resumed);
      if (first && link.send) ping();
      if (first) changed();
    }
  }

  /** Half a minute before the token expires, or after half its life if that is sooner. */
  function refreshTime() {
    try {
      const { exp } = JSON.parse(atob(token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/")));
      const left = exp * 1000 - Date.now() - (clock.best?.offsetMs ?? 0);
      return Date.now() + Math.max(left - 30_000, left / 2);
    } catch {
      return 0;
    }
  }

  async function refresh() {
    const mine = link;
    refreshAt = 0;
    // Without a fresh one the gateway closes in time, and the next attempt asks again.
    const fresh = await on.token().catch(() => {});
    if (link !== mine || !fresh || fresh === token) return;
    token = fresh;
    send({ type: "auth", token });
  }

  function ping() {
    const now = Date.now();
    // Not stamped as the one before, for the pong tells them apart.
    pingedAt = now === pingedAt ? now + 1 : now;
    send({ type: "ping", ts: pingedAt });
  }

  function probe(ms) {
    answerBy = Date.now() + ms;
    unanswered++;
    ping();
  }

  function probeUrgently() {
    probe(URGENT_MS);
    urgentAt = pingedAt;
  }

  /** One timer for silence, clock and token, so that a page that was frozen is seen to be late. */
  function tick() {
    const now = Date.now();
    const slept = now - tickedAt > tickMs + 5_000;
    tickedAt = now;
    if (!liveAt) return;
    if (link.send) {
      // What came during a sleep may still wait behind this timer: ask before giving up.
      if (slept && unanswered < 2) return probeUrgently();
      if (answerBy && now >= answerBy) return end({ reason: "silent" });
      if (!answerBy && now - heardAt >= heartbeatMs / 2) probe(heartbeatMs / 2);
      else if (now - pingedAt >= (clock.settled ? 15_000 : 2_000)) ping();
      if (refreshAt && now >= refreshAt) refresh();
    } else if (now - heardAt >= 2 * heartbeatMs + 1_000) {
      if (!slept || unanswered++ > 1) return end({ reason: "silent" });
      heardAt += URGENT_MS;
    }
  }

  function end({ code, status, reason, afterMs = 0 }) {
    const now = Date.now();
    // Never heard, and not told why: perhaps only WebSocket is in somebody's way. SSE tells a status.
    const blocked = mode === "auto" && transport === "ws" && dialledAt && !liveAt && (!code || code === 1006);
    if (liveAt && now - liveAt > STABLE_MS) failures = refusals = 0;
    drop();
    reason ||= FINAL_STATUS[status] || (status ? `http_${status}` : code ? `code_${code}` : "unreachable");
    if (FINAL_STATUS[status] || FINAL_CLOSES.includes(reason)) return tell("closed", { reason });
    if (status === 401 || (code === 1008 && TOKEN_CLOSES.includes(reason))) {
      refused = token;
      if (++refusals >= MAX_REFUSALS || !token) return tell("signin", { reason });
      return refusals > 1 ? wait(refusalPause(refusals), reason) : attempt();
    }
    if (blocked) return attempt("sse");
    if (reason === "rate_limited" || code === 1013) failures = Math.max(failures, 2);
    const backoff = Math.random() * Math.min(maxBackoffMs, Math.max(retryMs, minBackoffMs) * 2 ** failures++);
    const pause = notBefore ? Math.max(0, notBefore - now) : afterMs + backoff;
    const told = !!(notBefore || afterMs > 0);
    notBefore = 0;
    wait(pause, reason, told);
  }

  /** Tells the gateway what is wanted more, less, or at another rate than it knows. */
  function sync() {
    syncTimer = 0;
    syncedAt = Date.now();
    const gone = [...sent.keys()].filter((id) => !wanted.has(id));
    const groups = new Map();
    for (const [id, rate] of wanted) {
      if (sent.get(id) === rate) continue;
      groups.set(rate, [...(groups.get(rate) ?? []), id]);
    }
    if (!gone.length && !groups.size) return;
    if (!link.send) return wanted.size && attempt("sse", true, true);
    sent = new Map(wanted);
    const ask = (type, ids, more) => {
      for (let at = 0; at < ids.length; at += CHUNK) {
        send({ type, request_id: `${syncedAt}`, topics: ids.slice(at, at + CHUNK).map(topicOf), ...more });
      }
    };
    ask("unsubscribe", gone);
    for (const [rate, ids] of groups) ask("subscribe", ids, rate ? { max_rate_hz: rate } : {});
  }

  /** To be called after `wanted` changed. */
  function changed() {
    if (!wanted.size) return;
    if (state.status === "idle" || state.reason === FINAL_STATUS[400]) attempt();
    else if (liveAt && !syncTimer) syncTimer = setTimeout(sync, Math.max(0, syncedAt + GATHER_MS - Date.now()));
  }

  function stop() {
    drop();
    liveAt = 0;
    tell("idle");
  }

  return {
    changed,
    get state() {
      return state;
    },
    /** Ends the session; `changed` begins anew. */
    stop,
    /** Somebody asks for it, say after signing in: at once, and with all failures forgotten. */
    connect() {
      if (state.status === "live" || state.status === "connecting") return;
      failures = refusals = 0;
      attempt();
    },
    /** Changes the transport. */
    use(to) {
      mode = to;
      blockedUntil = failures = 0;
      if (state.status !== "idle") attempt();
    },
    /** The page came into view, or the network changed. */
    async wake() {
      const { status, told } = state;
      blockedUntil = transport === "sse" && liveAt ? blockedUntil : 0;
      if (status === "live" && link.send) probeUrgently();
      else if (status === "signin" || (status === "waiting" && refusals)) {
        const was = state;
        const fresh = await on.token(refused).catch(() => refused);
        if (state === was && fresh !== refused) attempt();
      } else if (status === "waiting" && !told && Date.now() - startedAt > 1_000) attempt();
    },
  };
}
