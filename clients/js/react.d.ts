import type { Context } from "react";
import type { Client, InstrumentId, Quote, State, SubscribeOptions } from "./index.js";

/** Holds the client: `<TickbridgeContext.Provider value={client}>`. */
export const TickbridgeContext: Context<Client | null>;

/** The newest quote of one instrument. Renders again for that instrument only. */
export function useQuote(id: InstrumentId, options?: SubscribeOptions): Quote | undefined;

/** The connection's state. */
export function useConnectionState(): State;
