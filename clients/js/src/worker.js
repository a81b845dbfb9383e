/** The SharedWorker: one hub, hence one session, for all tabs of a browser. */

import { createHub } from "./hub.js";

let hub;

self.onconnect = ({ ports: [port] }) => {
  let page;
  port.onmessage = ({ data }) => {
    if (!data.lock) return page?.tell(data);
    hub ??= createHub(data.options);
    page = hub.join((message) => port.postMessage(message));
    // Workers aren't told when a tab goes. The tab holds this lock as long as it lives.
    navigator.locks.request(data.lock, () => page.leave());
  };
};
