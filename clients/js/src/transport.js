/**
 * The two ways to the gateway, behind one shape: each opens a URL and gives a link with `close()` and, where the
 * way is two-way, `send(text)`.
 *
 * The link reports to `on`: `open()`, `text(json)`, `heard()` for signs of life without a message,
 * `end(why)`; SSE also `cursor(id)`, `retry(ms)` and
 * `comment(text)`. Late words of a closed link are possible. SSE isn't read on while the promise of `room()`, where
 * there is one, is open.
 *
 * Not here: when to connect, what the messages mean, and deafness to late words (`connection`).
 */

export function openWebSocket(url, on) {
  const socket = new WebSocket(url.replace(/^http/, "ws"));
  socket.onopen = on.open;
  socket.onmessage = (event) => on.text(event.data);
  socket.onclose = (event) => on.end(event);
  // A close follows, whose code says nothing more; some runtimes spare it.
  socket.onerror = () => on.end({});
  return {
    send: (text) => socket.readyState === 1 && socket.send(text),
    close() {
      // A dead network delivers the close event a minute late; nobody waits for it.
      socket.onopen = socket.onmessage = socket.onclose = socket.onerror = null;
      socket.close();
    },
  };
}

/** `fetch` instead of `EventSource`, which hides the status and gives up after one error page. */
export function openSse(url, { token, credentials }, on) {
  const abort = new AbortController();
  const run = async () => {
    let why = {};
    try {
      const response = await fetch(url, {
        headers: { accept: "text/event-stream", ...(token && { authorization: `Bearer ${token}` }) },
        cache: "no-store",
        credentials,
        signal: abort.signal,
      });
      why = refusalOf(response);
      if (why.status === 200 && /^text\/event-stream/.test(response.headers.get("content-type"))) {
        why = {};
        on.open();
        await read(response.body.getReader(), on);
      } else {
        // An unread body would hold one of the browser's few connections.
        abort.abort();
      }
    } catch {
      // Unreachable, cut, or aborted: all the same to the caller.
    }
    on.end(why);
  };
  run();
  return { close: () => abort.abort() };
}

/** What an answer that is no stream says: its status, and for how long not to come back. */
export function refusalOf({ status, headers }) {
  const after = headers.get("retry-after");
  return { status, afterMs: Number(after) * 1000 || Date.parse(after) - Date.now() || 0 };
}

async function read(reader, on) {
  const decoder = new TextDecoder();
  let rest = "";
  let data = "";
  for (;;) {
    await on.room?.();
    const { done, value } = await reader.read();
    if (done) return;
    on.heard();
    const lines = (rest + decoder.decode(value, { stream: true })).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      const [, field, text] = /^([^:]*):? ?([^]*)$/.exec(line);
      if (field === "data") data += data ? `\n${text}` : text;
      else if (field === "id") on.cursor(text);
      else if (field === "retry") on.retry(Number(text));
      else if (!field && line) on.comment(text);
      else if (!line && data) {
        on.text(data);
        data = "";
      }
    }
  }
}
