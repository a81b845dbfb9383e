/** One token of an answer, or whatever its producer writes. */
export interface StreamEntry {
  readonly type: "entry";
  /** Where to go on after it. */
  readonly id: string;
  /** A name that the producer gave. */
  readonly event?: string;
  readonly data?: string;
  /** In place of `data` where that is no UTF-8: base64. */
  readonly data64?: string;
}

/** The last message. */
export interface StreamEnd {
  readonly type: "end";
  readonly id: string;
  /** As the producer wrote it, such as `done`, `error` or `cancelled`. */
  readonly status: string;
  readonly event?: string;
  readonly data?: string;
  readonly data64?: string;
}

/** Entries between two ids were trimmed away before they could be had. Told again if the connection is lost before the next entry. */
export interface StreamGap {
  readonly type: "gap";
  readonly id?: string;
  /** `"$"` where the stream was opened from now on and lost before it was known where that is. */
  readonly after: string;
  readonly before?: string;
  /** How many, where that can be known; it may be none. */
  readonly missing?: number;
}

/** Entries that had come already are gone from the store, which lost them in a failover. */
export interface StreamLost {
  readonly type: "lost";
  readonly id: string;
  readonly after: string;
  readonly through: string;
  readonly missing?: number;
}

export type StreamMessage = StreamEntry | StreamEnd | StreamGap | StreamLost;

export interface StreamState {
  /**
   * `stalled`: connected, but the producer is silent. `waiting`: lost, tries again by itself. `ended`: the `end` entry came.
   * `closed`: by `close()`, or because it can't go on.
   */
  readonly status: "connecting" | "live" | "stalled" | "waiting" | "ended" | "closed";
  /** The end's status where `ended`; otherwise why. */
  readonly reason?: string;
  /** When it tries again. */
  readonly retryAt?: number;
  /** The gateway named the time, so nothing makes it sooner. */
  readonly told?: boolean;
}

export interface StreamOptions {
  /** Base URL of the gateway, with a path prefix if a proxy adds one. Default: the page's origin. */
  url?: string | URL;
  /** Where to begin: `"0"`, the start (default); `"$"`, from now on; or an id, after that entry. */
  from?: string;
  /** As for `createClient`: asked before each attempt; `refused` is the one that the gateway has just refused. */
  token?: (context: { refused?: string }) => string | null | undefined | Promise<string | null | undefined>;
  /** Default `"sse"`. */
  transport?: "sse" | "ws";
  /** The gateway's `session.heartbeat_interval`, in milliseconds. Default 20,000. */
  heartbeatMs?: number;
  /** Upper bound of the first pause after a failure; it doubles with each further one. Default 1,000. */
  minBackoffMs?: number;
  /** Upper bound of any such pause. Default 30,000. */
  maxBackoffMs?: number;
  /** For cookies across origins. Default `"same-origin"`. */
  credentials?: RequestCredentials;
  onState?: (state: StreamState) => void;
}

/** Every entry once and in order; throws a `StreamError` where it can't go on. For one reader. */
export interface Stream extends AsyncIterable<StreamMessage> {
  readonly state: StreamState;
  /** Id of the last message that had one; `from` for whoever goes on. */
  readonly cursor: string;
  /** Drops the connection and goes on from the cursor, at once or after `ms`. */
  reconnect(ms?: number): void;
  close(): void;
}

export class StreamError extends Error {
  readonly reason: "unknown_stream" | "unauthorized" | "forbidden" | "bad_request" | "producer_timeout" | string;
  /** Where it stopped. */
  readonly cursor: string;
}

export function openStream(id: string, options?: StreamOptions): Stream;
