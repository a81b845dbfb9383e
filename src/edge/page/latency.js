/**
 * Where the time goes: percentiles of each stage of a quote's journey, as figures and as plots.
 *
 * A percentile is of the quotes of the last ten seconds, and is taken once a second. Snapshots don't
 * count: their stamps are as old as the price. Only the last stage crosses two clocks.
 */

import { fade, fit, token } from "./canvas.js";

const WINDOW_S = 10;
const HISTORY_S = 120;
/** Room for the words below the last plot; all share its time. */
const AXIS_PX = 15;
/** Quotes of one second that count; bounds the work of a fast feed. */
const MOST_PER_SECOND = 2_000;

/** Stamps are whole milliseconds, so what is shorter than one is only known to be so. */
const COARSE = 3;
const STAGES = [
  ["Source to publisher", (q) => q.publishedAt - q.eventTs],
  ["Publisher to gateway", (q) => q.arrivedAt - q.publishedAt],
  ["Inside the gateway", (q) => q.emittedAt - q.arrivedAt],
  ["Gateway to this page", (q) => q.latencyMs],
  ["All the way", (q) => q.emittedAt - q.eventTs + q.latencyMs],
];
const TO_PAGE = 3;

export function createLatency(place) {
  const stages = STAGES.map(([name, measure], i) => createStage(place, name, measure, i < COARSE, i === STAGES.length - 1));
  return {
    take(quote) {
      if (quote.initial || quote.stale) return;
      for (const stage of stages) stage.take(quote);
    },
    tick() {
      for (const stage of stages) stage.tick();
    },
    repaint() {
      for (const stage of stages) stage.draw();
    },
    /** The median from the gateway to this page, in ms. */
    toPage: () => stages[TO_PAGE].history.at(-1)?.p50,
  };
}

function createStage(place, name, measure, coarse, total) {
  const element = document.createElement("div");
  element.className = total ? "stage total" : "stage";
  const head = document.createElement("div");
  head.className = "stage-head";
  const title = document.createElement("h3");
  title.textContent = name;
  const figures = document.createElement("p");
  figures.className = "figures";
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${name}: no quotes yet`);
  head.append(title, figures);
  element.append(head, canvas);
  place.append(element);

  const seconds = [[]];
  const history = [];

  function draw() {
    if (document.hidden) return;
    const { context, width, height } = fit(canvas);
    if (!width) return;
    const known = history.filter(Boolean);
    const top = scale(Math.max(1, ...known.map(({ p99 }) => p99)));
    const floor = height - (total ? AXIS_PX : 2);
    const x = (i) => width - ((history.length - 1 - i) * width) / (HISTORY_S - 1);
    const y = (ms) => floor - (Math.max(0, ms) / top) * (floor - 3);
    context.strokeStyle = token("--line");
    for (const part of [0, 0.5, 1]) line(context, [[0, y(top * part)], [width, y(top * part)]]);
    for (const part of [0.25, 0.5, 0.75]) line(context, [[width * part, 3], [width * part, floor]]);
    if (known.length > 1) {
      // The tail is a band over the median, so that one glance tells the spread.
      const upper = points(history, x, (h) => y(h.p99));
      const lower = points(history, x, (h) => y(h.p50));
      const tail = token("--tail");
      context.fillStyle = fade(tail, 0.18);
      context.beginPath();
      [...upper, ...lower.toReversed()].forEach(([px, py], i) => context[i ? "lineTo" : "moveTo"](px, py));
      context.fill();
      context.lineWidth = 1.25;
      context.strokeStyle = tail;
      line(context, upper);
      context.lineWidth = 1.75;
      context.strokeStyle = token("--median");
      line(context, lower);
    }
    // The ground around the letters keeps them legible where a line runs behind.
    context.fillStyle = token("--dim");
    context.strokeStyle = token("--panel");
    context.lineWidth = 3;
    context.lineJoin = "round";
    context.font = "10px Arial, sans-serif";
    const label = (text, at, baseline, align) => {
      context.textAlign = align;
      context.strokeText(text, at, baseline);
      context.fillText(text, at, baseline);
    };
    label(`${top} ms`, 2, 12, "left");
    label("0", 2, floor - 2, "left");
    if (!total) return;
    label("2 min ago", 0, height - 3, "left");
    label("1 min", width / 2, height - 3, "center");
    label("now", width, height - 3, "right");
  }

  return {
    history,
    take(quote) {
      const ms = measure(quote);
      const second = seconds.at(-1);
      if (Number.isFinite(ms) && second.length < MOST_PER_SECOND) second.push(ms);
    },
    tick() {
      const sorted = seconds.flat().sort((a, b) => a - b);
      seconds.push([]);
      if (seconds.length > WINDOW_S) seconds.shift();
      const at = (p) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * p))];
      history.push(sorted.length ? { p50: at(0.5), p99: at(0.99) } : undefined);
      if (history.length > HISTORY_S) history.shift();
      const now = history.at(-1);
      if (now) figures.replaceChildren(figure("p50", now.p50, coarse), figure("p99", now.p99, coarse));
      else figures.textContent = "no quotes yet";
      canvas.setAttribute("aria-label", `${name}: ${figures.textContent}`);
      draw();
    },
    draw,
  };
}

function figure(percentile, ms, coarse) {
  const element = document.createElement("span");
  element.className = percentile;
  const label = document.createElement("small");
  label.textContent = `${percentile} `;
  const value = document.createElement("b");
  value.textContent = coarse && ms === 0 ? "< 1" : round(ms, coarse);
  const unit = document.createElement("small");
  unit.textContent = " ms ";
  element.append(label, value, unit);
  return element;
}

const round = (ms, coarse) => (Math.abs(ms) < 10 && !coarse ? ms.toFixed(1) : `${Math.round(ms)}`);

/** The next round number above. */
function scale(ms) {
  const power = 10 ** Math.floor(Math.log10(ms));
  return [1, 2, 5, 10].map((step) => step * power).find((top) => top >= ms);
}

const points = (history, x, y) => history.flatMap((h, i) => (h ? [[x(i), y(h)]] : []));

function line(context, at) {
  context.beginPath();
  at.forEach(([x, y], i) => context[i ? "lineTo" : "moveTo"](x, y));
  context.stroke();
}
