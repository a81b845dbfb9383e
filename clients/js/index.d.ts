/** An instrument. Numbers must be safe integers; beyond 2^53 pass a string or a BigInt. */
export type InstrumentId = string | bigint | number;

export type Transport = "auto" | "ws" | "sse";

export interface ClientOptions {
  /** Base URL of the gateway, with a path prefix if a proxy adds one. Default: the page's origin. */
  url?: string | URL;
  /**
   * Gives the JWT, asked before each attempt and shortly before the token expires; nothing for a
   * guest. `refused` is the token that the gateway has just refused: give another one.
   */
  token?: (context: { refused?: string }) => string | null | undefined | Promise<string | null | undefined>;
  /** Default `"auto"`: WebSocket, and SSE where that fails. */
  transport?: Transport;
  /**
   * One connection for all tabs of the browser, where it has SharedWorker. Default true. A string
   * keeps pages apart that must not share, such as different users of one origin.
   */
  shared?: boolean | string;
  /** The gateway's `session.heartbeat_interval`, in milliseconds. Default 20,000. */
  heartbeatMs?: number;
  /**
   * Upper bound of the first pause after a failure; it doubles with each further one. Default 3,000: a crowd that
   * a proxy cuts at once comes back spread over that time, and half of it is what one user waits on average.
   */
  minBackoffMs?: number;
  /** Upper bound of any such pause. Default 30,000. */
  maxBackoffMs?: number;
  /** For SSE with cookies across origins. Default `"same-origin"`. */
  credentials?: RequestCredentials;
}

/**
 * One price statement. Figures are decimal text with the source's own digits; a figure that the
 * source lacks is undefined. Times are milliseconds since the Unix epoch.
 */
export interface Quote {
  readonly id: string;
  readonly price?: string;
  readonly prevDayChangePct?: string;
  readonly volume?: string;
  readonly open?: string;
  readonly high?: string;
  readonly low?: string;
  readonly value?: string;
  /** The source's local date-time, or its parts. */
  readonly at?: string | readonly number[];
  readonly seq?: string;
  /** When the source made it. */
  readonly eventTs?: number;
  /** When the publisher sent it. */
  readonly publishedAt?: number;
  /** When the gateway received it. */
  readonly arrivedAt?: number;
  /** When the gateway encoded it. */
  readonly emittedAt: number;
  /** When this browser received it, by its own clock. */
  readonly receivedAt: number;
  /** From `emittedAt` to `receivedAt`, clocks compared; undefined until they have been. */
  readonly latencyMs?: number;
  /** `latencyMs` is wrong by at most this. */
  readonly latencyErrorMs?: number;
  /** Read from storage, not live. */
  readonly initial: boolean;
  /** May be out of date: the connection or the instrument's source is lost. */
  readonly stale: boolean;
}

export type State =
  | { readonly status: "idle" | "connecting" | "live"; readonly transport?: "ws" | "sse" }
  | {
      /** Lost; tries again by itself. */
      readonly status: "waiting";
      readonly transport?: "ws" | "sse";
      readonly reason: string;
      readonly retryAt: number;
      /** The gateway named the time, so nothing makes it sooner. */
      readonly told?: boolean;
    }
  | {
      /** `signin`: no token is accepted; sign in, then `connect()`. `closed`: over for good. */
      readonly status: "signin" | "closed";
      readonly transport?: "ws" | "sse";
      readonly reason: string;
    };

/** Gateway's time = this browser's time + `offsetMs`, wrong by at most `errorMs`. */
export interface Clock {
  readonly offsetMs: number;
  readonly errorMs: number;
}

export interface Rejection {
  readonly id: string;
  readonly reason?: "invalid_topic" | "limit_exceeded" | "forbidden" | string;
}

export interface GatewayError {
  readonly code: "BAD_REQUEST" | "LIMIT_EXCEEDED" | string;
  readonly message: string;
  readonly request_id?: string;
}

export interface ClientEvents {
  state: State;
  clock: Clock;
  rejected: Rejection;
  error: GatewayError;
}

export interface SubscribeOptions {
  /** At most so many quotes per second and instrument, always the newest. Default: all of them. */
  maxRateHz?: number;
}

export interface Client {
  readonly state: State;
  readonly clock: Clock | undefined;
  /**
   * Calls `onQuote` with each instrument's quotes: the newest known one first, then whatever follows, and
   * the same quote again when its `stale` mark changes. Returns the way to end it.
   */
  subscribe(
    ids: InstrumentId | readonly InstrumentId[],
    onQuote: (quote: Quote) => void,
    options?: SubscribeOptions,
  ): () => void;
  /** The quotes of one instrument; a slow reader gets the newest. */
  quotes(id: InstrumentId, options?: SubscribeOptions): AsyncIterable<Quote>;
  /** The newest quote of a subscribed instrument. */
  latest(id: InstrumentId): Quote | undefined;
  on<K extends keyof ClientEvents>(event: K, listener: (value: ClientEvents[K]) => void): () => void;
  /** Tries again now, say after the user has signed in. */
  connect(): void;
  /** Changes the transport, for all pages that share the connection. */
  setTransport(transport: Transport): void;
  close(): void;
}

export function createClient(options?: ClientOptions): Client;
