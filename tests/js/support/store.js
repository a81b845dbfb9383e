/**
 * The price store of a front end that knows the protocol's fixed part only: it signs in, waits for the answer,
 * subscribes, answers `ping`, and files events by topic. It must work with the gateway as it stands.
 */
function createPriceStore(url, token, topics) {
  const store = { prices: {}, status: "connecting", acknowledged: [], errors: [], closed: undefined };
  const socket = new WebSocket(url);
  const subscribe = () => socket.send(JSON.stringify({ type: "subscribe", request_id: "prices", topics }));
  socket.onopen = () => {
    if (token) socket.send(JSON.stringify({ type: "auth", token }));
    else subscribe();
  };
  socket.onmessage = (event) => {
    const message = JSON.parse(event.data);
    switch (message.type) {
      case "auth":
        if (message.ok) subscribe();
        break;
      case "subscribe":
        store.status = "live";
        store.acknowledged = message.subscribed;
        break;
      case "ping":
        store.pings = (store.pings ?? 0) + 1;
        socket.send(JSON.stringify({ type: "pong" }));
        break;
      case "event":
        store.prices[message.topic] = { price: message.data.price, at: message.data.eventTs, volume: message.data.volume };
        break;
      case "error":
        store.errors.push(message.code);
        break;
    }
  };
  socket.onclose = ({ code, reason }) => {
    store.status = "closed";
    store.closed = `${code} ${reason}`;
  };
  return store;
}
