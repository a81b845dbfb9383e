/** React bindings: a component renders again for its own instrument, and for no other. */

import { createContext, useCallback, useContext, useSyncExternalStore } from "react";

export const TickbridgeContext = createContext(null);

function useClient() {
  const client = useContext(TickbridgeContext);
  if (!client) throw new Error("no client: wrap the tree in <TickbridgeContext.Provider value={client}>");
  return client;
}

export function useQuote(id, { maxRateHz } = {}) {
  const client = useClient();
  // One spelling per id, so that 5, "5" and "005" don't subscribe anew.
  const key = `${BigInt(id)}`;
  const subscribe = useCallback((changed) => client.subscribe(key, changed, { maxRateHz }), [client, key, maxRateHz]);
  const newest = () => client.latest(key);
  return useSyncExternalStore(subscribe, newest, () => undefined);
}

export function useConnectionState() {
  const client = useClient();
  const subscribe = useCallback((changed) => client.on("state", changed), [client]);
  const state = () => client.state;
  return useSyncExternalStore(subscribe, state, () => client.state);
}
