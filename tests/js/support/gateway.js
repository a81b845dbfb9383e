/**
 * A gateway that does as it is told: the protocol's good conduct by default, and every bad one on
 * demand. Real sockets, written with node's own modules only.
 */

import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";

export const WS_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

export async function startGateway(options = {}) {
  const gateway = new Gateway(options);
  await gateway.start();
  return gateway;
}

class Gateway {
  constructor({ tokens, files } = {}) {
    /** Accepted tokens; none means that guests may subscribe. */
    this.tokens = tokens;
    /** `(request) => [type, body]` for the pages of browser tests. */
    this.files = files ?? (() => undefined);
    this.prices = new Map();
    this.sessions = new Set();
    /** Every session there ever was. */
    this.history = [];
    /** Handlers that a test may replace. */
    this.refuse = () => undefined;
    this.port = 0;
  }

  get url() {
    return `http://127.0.0.1:${this.port}`;
  }

  async start() {
    this.server = createServer((request, response) => this.#http(request, response));
    this.server.on("upgrade", (request, socket) => this.#upgrade(request, socket));
    this.server.listen(this.port, "127.0.0.1");
    await once(this.server, "listening");
    this.port = this.server.address().port;
  }

  /** As kill -9 does: every connection is gone, the port is closed. */
  async kill() {
    const closed = once(this.server, "close");
    this.server.close();
    this.server.closeAllConnections();
    for (const session of this.sessions) session.cut();
    await closed;
  }

  /** Stores a price and sends it to whoever wants it. `fields` values are JSON text. */
  publish(id, fields) {
    this.prices.set(`${id}`, fields);
    for (const session of this.sessions) session.event(`${id}`, fields);
  }

  only() {
    const [session, ...others] = this.sessions;
    if (!session || others.length) throw Error(`${this.sessions.size} sessions`);
    return session;
  }

  #http(request, response) {
    const url = new URL(request.url, this.url);
    const file = this.files(url.pathname);
    if (file) {
      response.writeHead(200, { "content-type": file[0] });
      return response.end(file[1]);
    }
    const refusal = this.refuse(request);
    if (refusal) {
      response.writeHead(refusal.status, refusal.headers);
      return response.end(refusal.body ?? "");
    }
    if (url.pathname !== "/market/sse") {
      response.writeHead(404);
      return response.end();
    }
    const token = request.headers.authorization?.replace("Bearer ", "");
    if (this.tokens && !this.tokens.includes(token)) {
      response.writeHead(401);
      return response.end('{"code":"UNAUTHORIZED","message":"no good token"}');
    }
    new SseSession(this, response, url, token);
  }

  #upgrade(request, socket) {
    const refusal = this.refuse(request);
    if (refusal) return socket.end(`HTTP/1.1 ${refusal.status} no\r\ncontent-length: 0\r\n\r\n`);
    const accept = createHash("sha1").update(request.headers["sec-websocket-key"] + WS_GUID).digest("base64");
    socket.write(
      `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`,
    );
    new WsSession(this, socket);
  }
}

class Session {
  constructor(gateway, transport) {
    this.gateway = gateway;
    this.transport = transport;
    this.topics = new Map();
    this.silent = false;
    gateway.sessions.add(this);
    gateway.history.push(this);
  }

  acknowledge(id, asked, rate) {
    const topics = [...new Set(asked)];
    const valid = topics.filter((topic) => /^quote:-?\d+$/.test(topic));
    const already = valid.filter((topic) => this.topics.has(topic));
    for (const topic of valid) this.topics.set(topic, rate);
    const rejected = topics.filter((topic) => !valid.includes(topic));
    this.message({
      type: "subscribe",
      request_id: id,
      subscribed: valid,
      already_subscribed: already,
      rejected,
      rejected_reasons: rejected.map(() => "invalid_topic"),
    });
    for (const topic of valid.filter((topic) => !already.includes(topic))) {
      const fields = this.gateway.prices.get(topic.slice(6));
      if (fields) this.event(topic.slice(6), fields, true);
    }
  }

  message(message) {
    this.text(JSON.stringify(message));
  }

  event(id, fields, initial) {
    if (!this.topics.has(`quote:${id}`)) return;
    const data = Object.entries({ stockId: id, emittedAt: Date.now(), ...fields, ...(initial && { initial }) });
    const json = data.map(([name, value]) => `"${name}":${value}`).join();
    this.text(`{"type":"event","topic":"quote:${id}","ts":${Date.now()},"data":{${json}}}`);
  }

  gone() {
    this.gateway.sessions.delete(this);
  }
}

class WsSession extends Session {
  received = [];

  constructor(gateway, socket) {
    super(gateway, "ws");
    this.socket = socket;
    let buffer = Buffer.alloc(0);
    socket.on("error", () => {});
    socket.on("close", () => this.gone());
    socket.on("data", (chunk) => {
      buffer = Buffer.concat([buffer, chunk]);
      for (let frame; (frame = readFrame(buffer)); buffer = buffer.subarray(frame.size)) this.#frame(frame);
    });
  }

  #frame({ opcode, payload }) {
    if (this.silent) return;
    if (opcode === 8) {
      this.closedByClient = true;
      this.frame(8, payload);
      return this.socket.end();
    }
    if (opcode !== 1) return;
    const message = JSON.parse(payload);
    this.received.push(message);
    this.answer(message);
  }

  /** A test may replace it. */
  answer(message) {
    const { tokens } = this.gateway;
    if (message.type === "auth") {
      if (tokens && !tokens.includes(message.token)) {
        this.message({ type: "error", request_id: "", code: "UNAUTHORIZED", message: "no good token" });
        return this.close(1008, "auth_error");
      }
      this.token = message.token;
      this.message({ type: "auth", ok: true, ts: Date.now() });
    } else if (message.type === "ping") {
      this.message({ type: "pong", ts: message.ts, server_ts: Date.now() + (this.gateway.clockAheadMs ?? 0) });
    } else if (message.type === "subscribe") {
      if (tokens && !this.token) {
        return this.message({ type: "error", request_id: message.request_id, code: "UNAUTHORIZED", message: "auth first" });
      }
      this.acknowledge(message.request_id, message.topics, message.max_rate_hz);
    } else if (message.type === "unsubscribe") {
      for (const topic of message.topics) this.topics.delete(topic);
      this.message({ type: "unsubscribe", request_id: message.request_id, ok: true, unsubscribed: message.topics, not_subscribed: [], rejected: [] });
    }
  }

  of(type) {
    return this.received.filter((message) => message.type === type);
  }

  text(text) {
    this.frame(1, Buffer.from(text));
  }

  frame(opcode, payload) {
    if (this.silent || this.socket.destroyed) return;
    const header =
      payload.length < 126
        ? Buffer.from([0x80 | opcode, payload.length])
        : Buffer.from([0x80 | opcode, 126, payload.length >> 8, payload.length & 255]);
    this.socket.write(Buffer.concat([header, payload]));
  }

  close(code, reason) {
    const payload = Buffer.alloc(2 + reason.length);
    payload.writeUInt16BE(code);
    payload.write(reason, 2);
    this.frame(8, payload);
    this.socket.end();
    this.gone();
  }

  cut() {
    this.socket.destroy();
    this.gone();
  }
}

class SseSession extends Session {
  constructor(gateway, response, url, token) {
    super(gateway, "sse");
    this.response = response;
    this.token = token;
    this.cursor = url.searchParams.get("last_event_id");
    this.query = url.searchParams;
    response.on("close", () => this.gone());
    response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-cache, no-transform" });
    response.write(`retry: ${gateway.retryMs ?? 100}\n\n: open ${Date.now() + (gateway.clockAheadMs ?? 0)}\n\n`);
    this.sent = 0;
    this.named = "subscribe";
    this.acknowledge("", url.searchParams.get("topics").split(","), 0);
    this.named = undefined;
  }

  text(text) {
    if (this.silent) return;
    const named = this.named && text.startsWith('{"type":"subscribe"');
    this.response.write(named ? `event: subscribe\ndata: ${text}\n\n` : `id: c${++this.sent}\ndata: ${text}\n\n`);
  }

  cut() {
    this.response.destroy();
    this.gone();
  }
}

export function readFrame(buffer) {
  if (buffer.length < 6) return undefined;
  const short = buffer[1] & 127;
  const at = short === 126 ? 4 : 2;
  const length = short === 126 ? buffer.readUInt16BE(2) : short;
  const size = at + 4 + length;
  if (buffer.length < size) return undefined;
  const mask = buffer.subarray(at, at + 4);
  const payload = Buffer.from(buffer.subarray(at + 4, size).map((byte, i) => byte ^ mask[i % 4]));
  return { opcode: buffer[0] & 15, payload, size };
}

/** Waits until `check` gives something, at most `ms`. */
export async function until(what, check, ms = 20_000) {
  const end = Date.now() + ms;
  for (;;) {
    const value = check();
    if (value) return value;
    if (Date.now() > end) throw Error(`not within ${ms} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
