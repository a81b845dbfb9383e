#!/usr/bin/env python3
"""Prices over server-sent events, with nothing but the standard library.

    quotes.py [--gateway http://127.0.0.1:8080] [--count N] ID...

The token, if one is needed, comes from the environment variable TOKEN. After a lost connection the stream goes on
where it was: the gateway sends what changed since the last event id.
"""

import argparse
import json
import os
import random
import sys
import time
import urllib.error
import urllib.request
from decimal import Decimal

# Two heartbeats of the gateway's default and a little: a stream that is silent for longer is dead.
SILENCE_S = 42


class Stop(Exception):
    """Trying again would change nothing."""


def events(response):
    """Yields (name, id, data) of each event. Comment lines are heartbeats."""
    name, ident, data = "message", None, []
    for raw in response:
        line = raw.decode().rstrip("\r\n")
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "id":
            ident = value
        elif field == "data":
            data.append(value)
        elif not line and data:
            yield name, ident, "\n".join(data)
            name, data = "message", []


def stream(gateway, ids):
    """Yields quotes for ever."""
    url = f"{gateway}/market/sse?topics=" + ",".join(f"quote:{i}" for i in ids)
    last_id, failures, told = None, 0, None
    while True:
        request = urllib.request.Request(url, headers={"Accept": "text/event-stream"})
        if token := os.environ.get("TOKEN"):
            request.add_header("Authorization", f"Bearer {token}")
        if last_id:
            request.add_header("Last-Event-ID", last_id)
        pause = None
        try:
            with urllib.request.urlopen(request, timeout=SILENCE_S) as response:
                if response.status == 204:
                    raise Stop("the gateway says stop")
                for name, ident, data in events(response):
                    # Prices are decimals: a float would lose the digits of the source.
                    message = json.loads(data, parse_float=Decimal)
                    if name == "message":
                        failures, last_id = 0, ident or last_id
                        yield message
                    elif name == "subscribe" and message["rejected"]:
                        print("rejected:", message["rejected"], file=sys.stderr)
                    elif name == "reconnect":
                        told = time.monotonic() + message["after_ms"] / 1000
                    elif name == "close" and message["code"] == 1008:
                        raise Stop(message["reason"])
        except urllib.error.HTTPError as refusal:
            if refusal.code in (400, 401, 403):
                raise Stop(json.load(refusal)["message"]) from None
            after = refusal.headers.get("Retry-After", "")
            pause = float(after) if after.isdigit() else None
        except OSError as error:
            print("lost:", error, file=sys.stderr)
        if told:
            pause, told = max(0.0, told - time.monotonic()), None
        # Full jitter, so that clients that were cut together don't return together.
        time.sleep(pause if pause is not None else random.uniform(0, min(30, 2**failures)))
        failures += 1


def main():
    parser = argparse.ArgumentParser(description="Shows prices from a tickbridge gateway.")
    parser.add_argument("--gateway", default="http://127.0.0.1:8080")
    parser.add_argument("--count", type=int, help="end after so many quotes")
    parser.add_argument("ids", nargs="+", metavar="ID")
    options = parser.parse_args()
    try:
        for n, quote in enumerate(stream(options.gateway, options.ids), 1):
            print(quote["topic"], quote["data"].get("price"), flush=True)
            if n == options.count:
                break
    except Stop as reason:
        sys.exit(str(reason))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
