/** A page's way to the hub in the SharedWorker. */

/** A worker that hasn't answered by then is blocked or missing. */
const ANSWER_MS = 5_000;
/** Messages are acknowledged so many at a time. */
const TAKEN = 64;

/** Whether this browser can share a connection. Locks tell the worker that a tab is gone. */
export const canShare = () => typeof SharedWorker === "function" && !!navigator.locks;

/**
 * Joins the hub that all pages with the same options share. `failed` is called at most once, if there
 * turns out to be none.
 */
export function joinShared(options, key, post, failed) {
  const name = `tickbridge/1 ${key} ${JSON.stringify(options)}`;
  const lock = `${name} ${Math.random()}`;
  const worker = new SharedWorker(new URL("./worker.js", import.meta.url), { type: "module", name });
  const { port } = worker;
  let release = () => {};
  let n = 0;
  const leave = () => {
    clearTimeout(timer);
    port.onmessage = worker.onerror = null;
    release();
  };
  const fail = () => {
    leave();
    failed();
  };
  const timer = setTimeout(fail, ANSWER_MS);
  worker.onerror = fail;
  port.onmessage = ({ data }) => {
    clearTimeout(timer);
    post(data);
    // The worker sends no more than it knows to be taken.
    if (++n % TAKEN === 0) port.postMessage({ took: TAKEN });
  };
  // The worker must find the lock taken, or it would think us gone at once.
  const joined = new Promise((resolve) => {
    navigator.locks.request(lock, () => {
      port.postMessage({ lock, options });
      resolve();
      return new Promise((resolve) => (release = resolve));
    });
  });
  return { tell: (message) => joined.then(() => port.postMessage(message)), leave };
}
