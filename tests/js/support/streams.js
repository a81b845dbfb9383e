/** Streams as the protocol tells them, from memory, over real sockets; a test may interrupt at any message. */

import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import { readFrame, WS_GUID } from "./gateway.js";

export async function startStreams() {
  const gateway = new Streams();
  await gateway.start();
  return gateway;
}

class Streams {
  /** The messages of the one stream, each with an id. */
  entries = [];
  links = new Set();
  /** How each connection began: transport, `from`, ticket or token. */
  history = [];
  tokens;
  /** Where streams that are opened from now on begin, if that is told. */
  now;
  /** May answer a request itself: `{ status, headers, body }`, or `{ close: [code, reason] }` on a WebSocket. */
  refuse = () => undefined;
  /** Called before each message is sent on a link; what it returns as `true` is not sent. */
  before = () => {};
  n = 0;

  get url() {
    return `http://127.0.0.1:${this.port}`;
  }

  async start() {
    this.server = createServer((request, response) => this.#http(request, response));
    this.server.on("upgrade", (request, socket) => this.#upgrade(request, socket));
    this.server.listen(0, "127.0.0.1");
    await once(this.server, "listening");
    this.port = this.server.address().port;
  }

  async stop() {
    const closed = once(this.server, "close");
    this.server.close();
    for (const link of this.links) link.cut();
    this.server.closeAllConnections();
    await closed;
  }

  add(data) {
    this.#push({ type: "entry", id: `1700000000000-${this.n++}`, event: "token", data });
  }

  finish(status = "done") {
    this.#push({ type: "end", id: `1700000000000-${this.n++}`, status });
  }

  #push(message) {
    this.entries.push(message);
    for (const link of [...this.links]) link.entry(message);
  }

  /** Any message, to all. */
  say(message) {
    for (const link of [...this.links]) link.say(message);
  }

  #http(request, response) {
    const url = new URL(request.url, this.url);
    const refusal = this.refuse(request, url);
    const token = request.headers.authorization?.replace("Bearer ", "");
    const good = !this.tokens || this.tokens.includes(token);
    if (refusal || !good) {
      response.writeHead(refusal?.status ?? 401, refusal?.headers);
      return response.end();
    }
    if (url.pathname === "/market/ticket") {
      response.writeHead(200);
      return response.end(JSON.stringify({ ticket: `for-${token}` }));
    }
    const from = url.searchParams.get("from");
    this.history.push({ transport: "sse", from, token });
    if (this.entries.at(-1)?.type === "end" && this.entries.at(-1).id === from) {
      response.writeHead(204);
      return response.end();
    }
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(`retry: 20\n\n: open ${Date.now()}\n\n`);
    const link = this.#link(from, {
      text: (text, id) => response.write(`${id ? `id: ${id}\n` : ""}data: ${text}\n\n`),
      end: () => response.end(),
      cut: () => response.destroy(),
    });
    response.on("close", () => this.links.delete(link));
    link.begin();
  }

  #upgrade(request, socket) {
    const url = new URL(request.url, this.url);
    socket.on("error", () => {});
    const accept = createHash("sha1").update(request.headers["sec-websocket-key"] + WS_GUID).digest("base64");
    socket.write(
      `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`,
    );
    const frame = (opcode, payload) => {
      const { length } = payload;
      const header = length < 126 ? [0x80 | opcode, length] : [0x80 | opcode, 126, length >> 8, length & 255];
      if (!socket.destroyed) socket.write(Buffer.concat([Buffer.from(header), payload]));
    };
    const from = url.searchParams.get("from");
    this.history.push({ transport: "ws", from, ticket: url.searchParams.get("ticket") });
    const link = this.#link(from, {
      text: (text) => frame(1, Buffer.from(text)),
      end: (code = 1000, reason = "normal") => {
        const payload = Buffer.alloc(2 + reason.length);
        payload.writeUInt16BE(code);
        payload.write(reason, 2);
        frame(8, payload);
        socket.end();
      },
      cut: () => socket.destroy(),
    });
    let buffer = Buffer.alloc(0);
    socket.on("data", (chunk) => {
      buffer = Buffer.concat([buffer, chunk]);
      for (let got; (got = readFrame(buffer)); buffer = buffer.subarray(got.size)) if (got.opcode === 8) socket.end();
    });
    socket.on("close", () => this.links.delete(link));
    const refusal = this.refuse(request, url);
    if (refusal) return link.end(...refusal.close);
    link.begin();
  }

  #link(from, way) {
    const link = {
      ...way,
      say: (message) => way.text(JSON.stringify(message), message.id),
      entry: (message) => {
        if (!this.links.has(link) || this.before(message, link)) return;
        link.say(message);
        if (message.type === "end") way.end();
      },
      begin: () => {
        this.links.add(link);
        if (from === "$" && this.now) link.say({ type: "begin", id: this.now });
        const at = this.entries.findIndex(({ id }) => id === from) + 1;
        if (from !== "$") for (const message of this.entries.slice(at)) link.entry(message);
      },
    };
    return link;
  }
}
