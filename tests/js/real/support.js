/** For the scripts that run the client against a real gateway, started by `tests/it/client_js.rs`. */

/** Mocked ones take its name later. */
const realTimeout = setTimeout;

/** Waits until `check` gives something, by the real clock even where timers are mocked. */
export async function until(what, check, ms = 60_000) {
  const end = performance.now() + ms;
  for (;;) {
    const value = check();
    if (value) return value;
    if (performance.now() > end) throw Error(`not within ${ms} ms: ${what}`);
    await new Promise((resolve) => realTimeout(resolve, 2));
  }
}
