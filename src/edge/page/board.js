/**
 * The board: a row per instrument, with the text of the wire and a line of where the price has been.
 *
 * Quotes only leave notes, and rows are written at most once per frame. A hidden page has no frames, and its timers
 * hardly run: there each quote is written as it comes, which costs little where nothing is drawn.
 */

import { fade, fit, token } from "./canvas.js";

const LINE_POINTS = 90;
/** Closer together they are no line any more; a narrow one shows fewer. */
const POINT_PX = 2.5;
const FIELDS = ["price", "prevDayChangePct", "low", "high", "volume"];

export function createBoard(body) {
  const rows = new Map();
  const dirty = new Set();
  let due = false;

  function write() {
    due = false;
    for (const row of dirty) row.write();
    dirty.clear();
  }

  function schedule() {
    if (document.hidden) return write();
    if (!due) requestAnimationFrame(write);
    due = true;
  }

  function repaint() {
    rows.forEach((row) => dirty.add(row));
    schedule();
  }

  document.addEventListener("visibilitychange", repaint);

  return {
    /** Shows these instruments, and keeps what is known of those that were shown before. */
    setIds(ids) {
      for (const [id, row] of rows) {
        if (ids.includes(id)) continue;
        row.element.remove();
        rows.delete(id);
        dirty.delete(row);
      }
      for (const id of ids) {
        if (!rows.has(id)) rows.set(id, createRow(id));
        body.append(rows.get(id).element);
      }
      dirty.clear();
      repaint();
    },
    take(quote) {
      const row = rows.get(quote.id);
      if (!row) return;
      row.take(quote);
      dirty.add(row);
      schedule();
    },
    repaint,
    stale: () => [...rows.values()].filter((row) => row.stale).length,
  };
}

function createRow(id) {
  const element = document.createElement("tr");
  const head = document.createElement("th");
  head.scope = "row";
  head.textContent = id;
  const trend = document.createElement("td");
  trend.className = "trend";
  const canvas = document.createElement("canvas");
  canvas.setAttribute("aria-hidden", "true");
  trend.append(canvas);
  element.append(head, trend);
  const cells = {};
  for (const field of FIELDS) {
    const cell = (cells[field] = element.insertCell());
    cell.dataset.topic = `quote:${id}`;
    cell.dataset.field = field;
    if (field !== "price" && field !== "prevDayChangePct") cell.className = "wide";
    cell.textContent = "–";
  }
  const points = [];
  let quote, shown;

  function write() {
    if (quote && quote !== shown) {
      element.dataset.stale = `${quote.stale}`;
      writePrice(cells.price, shown?.price, quote.price);
      writeChange(cells.prevDayChangePct, quote.prevDayChangePct);
      for (const field of ["low", "high", "volume"]) setText(cells[field], quote[field]);
      shown = quote;
    }
    if (!document.hidden) drawLine(canvas, points);
  }

  return {
    element,
    take(next) {
      const price = Number(next.price);
      if (Number.isFinite(price) && next.receivedAt !== quote?.receivedAt) {
        points.push(price);
        if (points.length > LINE_POINTS) points.shift();
      }
      quote = next;
    },
    write,
    get stale() {
      return !!quote?.stale;
    },
  };
}

function setText(cell, text = "–") {
  if (cell.textContent !== text) cell.textContent = text;
}

/** The digits that changed carry the colour; together the parts are exactly the text of the wire. */
function writePrice(cell, before, text = "–") {
  if (before === undefined || before === text) return setText(cell, text);
  let same = 0;
  while (same < text.length && text[same] === before[same]) same++;
  if (text.length !== before.length) same = 0;
  const changed = document.createElement("span");
  const rose = Number(text) > Number(before);
  changed.className = rose ? "up" : "down";
  changed.textContent = text.slice(same);
  cell.replaceChildren(text.slice(0, same), changed);
  if (document.hidden || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const colour = token(rose ? "--up" : "--down");
  cell.animate([{ backgroundColor: fade(colour, 0.16) }, { backgroundColor: "transparent" }], {
    duration: 700,
    easing: "ease-out",
  });
}

function writeChange(cell, text = "–") {
  if (cell.textContent === text) return;
  cell.textContent = text;
  cell.className = !/[1-9]/.test(text) ? "" : text.startsWith("-") ? "down" : "up";
}

function drawLine(canvas, known) {
  const { context, width, height } = fit(canvas);
  const step = Math.max(POINT_PX, width / (LINE_POINTS - 1));
  const points = known.slice(-Math.floor(width / step) - 1);
  if (points.length < 2 || !width) return;
  const low = Math.min(...points);
  const high = Math.max(...points);
  const span = high - low || 1;
  const x = (i) => width - (points.length - 1 - i) * step - 3;
  const y = (price) => height - 4 - ((price - low) / span) * (height - 8);
  const colour = token(points.at(-1) >= points[0] ? "--up" : "--down");
  context.beginPath();
  points.forEach((price, i) => context[i ? "lineTo" : "moveTo"](x(i), y(price)));
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  context.stroke();
  context.lineTo(x(points.length - 1), height);
  context.lineTo(x(0), height);
  const shade = context.createLinearGradient(0, 0, 0, height);
  shade.addColorStop(0, fade(colour, 0.28));
  shade.addColorStop(1, fade(colour, 0));
  context.fillStyle = shade;
  context.fill();
  context.beginPath();
  context.arc(x(points.length - 1), y(points.at(-1)), 2.2, 0, 7);
  context.fillStyle = colour;
  context.fill();
}
