/**
 * Two answers side by side, one over server-sent events and one over WebSocket, word by word as a language model
 * gives them; and scissors for the connections.
 *
 * A word that is lost is a broken answer for good, so each is read a second time when it is whole, and compared.
 */

import { openStream } from "./client/streams.js";

/** How long a cut connection stays away; some twenty words are written meanwhile. */
const CUT_MS = 700;

/** `token` as for the client; `log` is told what happens. */
export function createAnswers(place, { token, heartbeatMs, log }) {
  const ask = place.querySelector("form");
  const [start, cut] = ask.querySelectorAll("button");
  const panes = [...place.querySelectorAll("[data-answer]")].map((pane) => createPane(pane, { token, heartbeatMs, log }));

  ask.addEventListener("submit", async (event) => {
    event.preventDefault();
    start.disabled = true;
    cut.disabled = false;
    place.querySelector("[data-panes]").hidden = false;
    log.add("Two answers begin");
    await Promise.all(panes.map((pane) => pane.run()));
    start.disabled = false;
    cut.disabled = true;
  });
  cut.addEventListener("click", () => {
    log.add("Cutting both answers", "odd");
    panes.forEach((pane) => pane.cut());
  });
}

function createPane(pane, { token, heartbeatMs, log }) {
  const { answer: transport } = pane.dataset;
  const name = pane.querySelector("h3").textContent;
  const text = pane.querySelector("[data-text]");
  const said = pane.querySelector("[data-said]");
  let stream;

  const say = (status, words) => {
    pane.dataset.progress = status;
    said.textContent = words;
  };

  async function begin() {
    const bearer = await token({});
    const headers = bearer ? { authorization: `Bearer ${bearer}` } : {};
    const answer = await fetch("/stream/demo", { method: "POST", headers });
    if (answer.status === 404) throw Error("this gateway makes no demo answers");
    if (!answer.ok) throw Error(`the gateway answers ${answer.status}`);
    return (await answer.json()).id;
  }

  /** Everything that is stored of it, by a connection of its own. */
  async function stored(id) {
    const ids = [];
    for await (const message of openStream(id, { token, heartbeatMs })) ids.push(message.id);
    return ids;
  }

  async function run() {
    text.replaceChildren();
    say("live", "begins");
    const ids = [];
    const began = performance.now();
    const after = () => `${((performance.now() - began) / 1000).toFixed(1)} s`;
    let n = 0;
    let cuts = 0;
    let gone = 0;
    let live = false;
    try {
      const id = await begin();
      stream = openStream(id, {
        transport,
        token,
        heartbeatMs,
        onState({ status }) {
          if (status === "waiting" && live) {
            cuts++;
            text.append(document.createElement("i"));
          }
          if (status === "waiting") say("waiting", `${n} words, connection cut`);
          if (status === "stalled") say("waiting", `${n} words, the producer is silent`);
          if (status !== "connecting") live = status !== "waiting";
        },
      });
      for await (const message of stream) {
        if (message.id) ids.push(message.id);
        if (message.type === "gap" || message.type === "lost") gone++;
        if (message.data === undefined) continue;
        text.append(message.data);
        say("live", `${++n} words in ${after()}`);
      }
      const time = after();
      const all = await stored(id);
      const whole = !gone && all.length === ids.length && all.every((one, at) => one === ids[at]);
      const times = `${cuts} ${cuts === 1 ? "cut" : "cuts"}`;
      say(whole ? "whole" : "broken", `${n} words in ${time}, ${times}, ${whole ? "none lost, none doubled" : "not what is stored"}`);
      log.add(`${name}: ${n} words, ${times}, ${whole ? "nothing lost" : "broken"}`, whole ? "good" : "bad");
    } catch (error) {
      say("broken", error.reason ?? error.message);
      log.add(`${name}: ${error.message}`, "bad");
    }
    stream = undefined;
  }

  return { run, cut: () => stream?.reconnect(CUT_MS) };
}
