/**
 * The SharedWorker: one hub, hence one session, for all tabs of a browser.
 *
 * A tab that is frozen or busy takes nothing; what waits for it is the newest of each kind, so that neither memory
 * nor the catching up afterwards grows with its absence.
 */

import { createHub } from "./hub.js";

/** Messages on the way to a tab; it acknowledges every 64th. */
const ON_THE_WAY = 256;

let hub;

self.onconnect = ({ ports: [port] }) => {
  const waiting = new Map();
  let onTheWay = 0;
  let page;

  function flush() {
    for (const [key, message] of waiting) {
      if (onTheWay >= ON_THE_WAY) return;
      onTheWay++;
      waiting.delete(key);
      port.postMessage(message);
    }
  }

  function post(message) {
    const { quote, state, clock } = message;
    // A newer one takes the place of its elder; questions and errors are few and each counts.
    waiting.set(quote?.id ?? (state ? "state" : clock ? "clock" : message), message);
    flush();
  }

  port.onmessage = ({ data }) => {
    if (data.took) {
      onTheWay -= data.took;
      return flush();
    }
    if (!data.lock) return page?.tell(data);
    hub ??= createHub(data.options);
    page = hub.join(post);
    // Workers aren't told when a tab goes. The tab holds this lock as long as it lives.
    navigator.locks.request(data.lock, () => page.leave());
  };
};
