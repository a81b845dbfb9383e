/**
 * The live page: wires the client to the board, the figures, the latency plots and the log.
 *
 * Query: `ids=1,2-5` chooses the instruments, `transport=ws|sse` the transport, `shared=0` keeps this tab's
 * session to itself, `heartbeat=2000` is for a gateway whose interval is not the default. A token may stand in
 * the fragment (`#token=…`), which never leaves the browser.
 */

import { createAnswers } from "./answers.js";
import { createBoard } from "./board.js";
import { createClient } from "./client/index.js";
import { createFigures } from "./figures.js";
import { formatIds, parseIds } from "./ids.js";
import { createLatency } from "./latency.js";
import { createLog } from "./log.js";

const $ = (id) => document.getElementById(id);
const query = new URLSearchParams(location.search);
const fragment = new URLSearchParams(location.hash.slice(1));
const asked = query.get("transport");

let token = fragment.get("token") ?? undefined;
// The token is for us alone: not for history, bookmarks or whoever looks over a shoulder.
if (token) history.replaceState(null, "", location.pathname + location.search);

const heartbeatMs = Number(query.get("heartbeat")) || undefined;

const client = createClient({
  transport: asked === "ws" || asked === "sse" ? asked : "auto",
  // There is no other token than this one: once refused, the user must sign in again.
  token: ({ refused }) => (token = refused && refused === token ? undefined : token),
  shared: query.get("shared") !== "0",
  heartbeatMs,
});
const board = createBoard($("board"));
const latency = createLatency($("stages"));
const figures = createFigures($);
const log = createLog($("log"));
const controls = $("controls");
createAnswers($("answers"), { token: () => token, heartbeatMs, log });

/* Prices */

let ids = [];
let stop = () => {};

function show() {
  stop();
  const rate = Number(controls.elements.rate.value);
  board.setIds(ids);
  stop = client.subscribe(ids, take, rate ? { maxRateHz: rate } : {});
}

function take(quote) {
  board.take(quote);
  figures.take(quote);
  latency.take(quote);
}

function choose(text) {
  const chosen = parseIds(text);
  $("ids").setAttribute("aria-invalid", `${!chosen}`);
  if (!chosen) return false;
  ids = chosen;
  $("ids").value = formatIds(ids);
  show();
  return true;
}

$("pick").addEventListener("submit", (event) => {
  event.preventDefault();
  if (choose($("ids").value)) log.add(`Showing ${ids.length} instruments`);
  else log.add("Instruments are ids and ranges with commas between them, 200 at most", "bad");
});

/* State */

const TRANSPORTS = { ws: "WebSocket", sse: "SSE" };
const REASONS = {
  silent: "nothing heard for too long",
  timeout: "no answer in time",
  unreachable: "the gateway can't be reached",
  blocked: "the browser forbids it",
  service_restart: "the gateway restarts",
  slow_consumer: "this page read too slowly",
  token_expired: "the token expired",
  auth_error: "the token was refused",
  stopped: "the gateway said stop",
};
const words = (reason = "") => REASONS[reason] ?? (/^code_100[56]$/.test(reason) ? "the connection broke" : reason.replace(/_/g, " "));

let wasLive = false;
let before = "";

/** What the body tells: whether what is shown can be relied on. */
function overall({ status }) {
  if (status === "live") return "live";
  if (status === "signin" || status === "closed") return "closed";
  return wasLive ? "stale" : "connecting";
}

function describe(state) {
  const name = TRANSPORTS[state.transport] ?? "";
  switch (state.status) {
    case "live":
      return `Live over ${name}`;
    case "waiting": {
      const seconds = Math.max(0, Math.ceil((state.retryAt - Date.now()) / 1000));
      return `Lost, again in ${seconds} s`;
    }
    case "signin":
      return "Sign in";
    case "closed":
      return `Closed: ${words(state.reason)}`;
    case "connecting":
      return `Connecting over ${name}`;
    default:
      return "Idle";
  }
}

function tell(state) {
  const { dataset } = document.body;
  dataset.state = overall(state);
  dataset.status = state.status;
  if (state.transport) {
    dataset.transport = state.transport;
    controls.elements.transport.value = state.transport;
  }
  $("state").textContent = describe(state);
  $("signin").hidden = state.status !== "signin";
}

client.on("state", (state) => {
  if (state.status === "live") {
    if (wasLive) figures.reconnected();
    log.add(`Live over ${TRANSPORTS[state.transport]}`, "good");
    wasLive = true;
  } else if (state.status === "waiting") {
    const pause = ((state.retryAt - Date.now()) / 1000).toFixed(1);
    log.add(`Lost: ${words(state.reason)}. Again in ${pause} s${state.told ? ", as told" : ""}`, "bad");
  } else if (state.status === "signin") log.add("No token is accepted: sign in", "bad");
  else if (state.status === "closed") log.add(`Closed: ${words(state.reason)}`, "bad");
  else if (state.status === "connecting" && before !== "waiting") log.add(`Connecting over ${TRANSPORTS[state.transport]}`);
  before = state.status;
  tell(state);
});
client.on("clock", (clock) => figures.clock(clock));
client.on("rejected", ({ id, reason = "rejected" }) => log.add(`Instrument ${id}: ${words(reason)}`, "odd"));
client.on("error", ({ code, message }) => log.add(`${code}: ${message}`, "bad"));

/* Controls */

controls.elements.transport.forEach((radio) =>
  radio.addEventListener("change", () => {
    log.add(`Changing to ${TRANSPORTS[radio.value]}`);
    client.setTransport(radio.value);
  }),
);
controls.elements.rate.forEach((radio) =>
  radio.addEventListener("change", () => {
    log.add(radio.value === "0" ? "Every quote, as they come" : `At most ${radio.value} quotes a second per instrument`);
    show();
  }),
);
controls.addEventListener("submit", (event) => event.preventDefault());

const THEME = "tickbridge.theme";
function theme(name) {
  document.documentElement.dataset.theme = name;
  board.repaint();
  latency.repaint();
}
controls.elements.theme.forEach((radio) =>
  radio.addEventListener("change", () => {
    localStorage.setItem(THEME, radio.value);
    theme(radio.value);
  }),
);
controls.elements.theme.value = localStorage.getItem(THEME) ?? "auto";
theme(controls.elements.theme.value);
document.addEventListener("visibilitychange", () => latency.repaint());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(controls.elements.theme.value));

function signIn(fresh) {
  token = fresh;
  client.connect();
}

$("signin").addEventListener("submit", (event) => {
  event.preventDefault();
  signIn(event.target.elements.token.value.trim());
  event.target.reset();
});

/* For whoever looks into the console. */
globalThis.tickbridge = { client, signIn };

/* Once a second: what is counted over time. */

let staleBefore = 0;
setInterval(() => {
  const { state } = client;
  if (state.status === "waiting") $("state").textContent = describe(state);
  latency.tick();
  figures.tick(latency.toPage());
  const stale = state.status === "live" ? board.stale() : 0;
  if (stale && stale !== staleBefore) log.add(`${stale} of ${ids.length} instruments are stale`, "odd");
  if (!stale && staleBefore) log.add("No instrument is stale", "good");
  staleBefore = stale;
}, 1_000);

tell(client.state);
if (!choose(query.get("ids") ?? "")) choose("1-20");
