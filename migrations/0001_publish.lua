#!lua name=tickbridge_publish_1

-- Stores a quote and announces it in one step, numbers it, and refuses one that is older than what is
-- stored. Loaded on every primary by `tickbridge migrate`.
--
-- A library is never changed once it was released: the next version is another library with another
-- function, so that publishers of both versions work while they are exchanged.
--
-- Numbers are exact up to 2^53, which microseconds since 1970 reach in the year 2255.

-- The version of what is stored: seq and ts, each nil where there is none.
local function version_of(stored)
  -- The tail that this function writes itself. Nothing nested can look like it: a nested object would be
  -- followed by another bracket.
  local ts, seq = string.match(stored, '"ts":(%-?%d+),"seq":(%d+)}$')
  if seq then
    return tonumber(seq), tonumber(ts)
  end
  local ok, quote = pcall(cjson.decode, stored)
  if not ok or type(quote) ~= 'table' then
    return nil, nil
  end
  local function number(value)
    return type(value) == 'number' and value or nil
  end
  return number(quote.seq), number(quote.ts)
end

-- KEYS: the price key, the updated-at key.
-- ARGS: PUBLISH or SPUBLISH, the channel, now (ms), time to live (s), the quote's ts and seq ('' where it
-- has none), the quote as JSON.
-- Gives the quote's seq, or 0 if it is older than what is stored.
local function publish(keys, args)
  local price_key, updated_at_key = keys[1], keys[2]
  local verb, channel, now_ms, ttl = args[1], args[2], args[3], args[4]
  local ts, seq, json = tonumber(args[5]), tonumber(args[6]), args[7]

  local stored = redis.pcall('GET', price_key)
  local stored_seq, stored_ts
  if type(stored) == 'string' then
    stored_seq, stored_ts = version_of(stored)
  end

  if seq and stored_seq then
    if seq <= stored_seq then
      return 0
    end
  elseif ts and stored_ts and ts < stored_ts then
    return 0
  end

  if not seq then
    -- By the clock, so that numbers don't begin anew when the key expires; above what is stored, so that
    -- a clock that was set back doesn't turn prices back.
    local time = redis.call('TIME')
    seq = math.max((stored_seq or 0) + 1, time[1] * 1000000 + time[2])
    json = string.gsub(json, '}%s*$', string.format(',"seq":%.0f}', seq))
  end

  redis.call('SET', price_key, json, 'EX', ttl)
  redis.call('SET', updated_at_key, now_ms, 'EX', ttl)
  redis.call(verb, channel, json)
  return seq
end

redis.register_function('tickbridge_publish_1', publish)
