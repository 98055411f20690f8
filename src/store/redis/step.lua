-- One request, or a part of one, as an atomic step: looks at every counter, then charges those that
-- their rules say. src/meter.rs and src/verdict.rs say why each is done as it is; the store contract
-- holds this to the same model.
--
-- KEYS: the counters, all of one hash slot.
-- ARGV: milliseconds since the epoch, or -1 for this server's clock; then for each key its method,
--       charge, voice, descriptor, hits, limit, period in milliseconds, and either the seconds that a
--       window's counter may live or the tokens that flow into a bucket in a period.
-- Reply: for each key the hits that it holds (and those ahead that wait with refused ones), whether these were charged, milliseconds until it is
--        empty, and milliseconds until these hits would pass (-1 if never). Windows leave the times
--        to their caller.

local GRACE = 1000
-- No count that is told goes above this, as Hits::MAX.
local MOST = 2 ^ 62
local FIELDS = 8

local now = tonumber(ARGV[1])
if now < 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Numbers up to 2^53 without an exponent.
local function text(number)
  return string.format('%.0f', number)
end

-- The whole numbers in a text such as 12:7:0.
local function numbers(state)
  local found = {}
  for number in string.gmatch(state, '%d+') do
    found[#found + 1] = tonumber(number)
  end
  return found
end

local function save(counter, state, lives)
  redis.call('SET', counter.key, state, 'PX', text(math.max(lives, 0) + GRACE))
end

-- The lowest index in [low, high] of which `is_so` holds, or high + 1. It holds for all behind it.
local function lowest(low, high, is_so)
  while low <= high do
    local middle = math.floor((low + high) / 2)
    if is_so(middle) then high = middle - 1 else low = middle + 1 end
  end
  return low
end

local ways = {}

ways.w = {
  look = function(c)
    c.held = tonumber(redis.call('GET', c.key) or '0')
  end,
  charge = function(c)
    if c.hits > 0 then
      -- The text, for hits can be more than a Lua number tells apart.
      local before = c.held
      c.held = redis.call('INCRBY', c.key, c.hits_text)
      if before == 0 then redis.call('EXPIRE', c.key, c.extra) end
    elseif c.held + c.hits > 0 then
      c.held = redis.call('INCRBY', c.key, c.hits_text)
    elseif c.held > 0 then
      redis.call('SET', c.key, '0', 'KEEPTTL')
      c.held = 0
    end
  end,
}

-- start:count
ways.f = {
  look = function(c)
    local state = redis.call('GET', c.key)
    c.held = 0
    if state then
      local found = numbers(state)
      if found[1] > now + c.period then
        redis.call('DEL', c.key)
      elseif now < found[1] + c.period then
        c.start, c.held = found[1], found[2]
      end
    end
  end,
  charge = function(c)
    if not c.start and c.hits < 0 then
      redis.call('DEL', c.key)
      return
    end
    c.start = c.start or now
    c.held = math.min(math.max(c.held + c.hits, 0), MOST)
    save(c, text(c.start) .. ':' .. text(c.held), c.start + c.period - now)
  end,
  resets_in = function(c)
    return c.start and c.start + c.period - now or 0
  end,
  retry_in = function(c)
    return c.start + c.period - now
  end,
}

local function share(c)
  c.held = c.current + math.ceil(c.previous * c.left / c.period)
end

-- index:current:previous
ways.s = {
  look = function(c)
    c.index, c.current, c.previous = math.floor(now / c.period), 0, 0
    local state = redis.call('GET', c.key)
    c.is_there = state
    if state then
      local found = numbers(state)
      if found[1] == c.index or found[1] == c.index + 1 then
        c.index, c.current, c.previous = found[1], found[2], found[3]
      elseif found[1] == c.index - 1 then
        c.previous = found[2]
      elseif found[1] > c.index then
        redis.call('DEL', c.key)
      end
    end
    c.left = c.period - math.max(now - c.index * c.period, 0)
    share(c)
  end,
  charge = function(c)
    if c.hits > 0 then
      c.current = c.current + c.hits
    else
      c.previous = math.max(c.previous - math.max(-c.hits - c.current, 0), 0)
      c.current = math.max(c.current + c.hits, 0)
    end
    share(c)
    if not c.is_there and c.hits < 0 then return end
    local state = text(c.index) .. ':' .. text(c.current) .. ':' .. text(c.previous)
    save(c, state, (c.index + 2) * c.period - now)
  end,
  resets_in = function(c)
    local stop = (c.index + 1) * c.period
    if c.current > 0 then stop = stop + c.period elseif c.previous == 0 then return 0 end
    return stop - now
  end,
  retry_in = function(c)
    local stop, older, room = (c.index + 1) * c.period, c.previous, c.limit - c.added
    if c.current > room then
      stop, older = stop + c.period, c.current
    else
      room = room - c.current
    end
    return stop - math.min(math.floor(room * c.period / math.max(older, 1)), c.period) - now
  end,
}

-- A list of at:total, each total with all hits up to there. The first entry is one that has left the
-- period, or none at all, and only tells where counting begins.
local function entry(c, index)
  local state = redis.call('LINDEX', c.key, index)
  if state then
    local found = numbers(state)
    return found[1], found[2]
  end
end

ways.l = {
  look = function(c)
    c.held = 0
    c.last_at, c.last_total = entry(c, -1)
    if not c.last_at then return end
    if c.last_at > now + c.period then
      redis.call('DEL', c.key)
      return
    end
    local length = redis.call('LLEN', c.key)
    local first = lowest(1, length - 1, function(index) return entry(c, index) + c.period > now end)
    if first > 1 then redis.call('LTRIM', c.key, first - 1, -1) end
    c.length = length - first + 1
    local _, before = entry(c, 0)
    c.held = c.last_total - before
  end,
  charge = function(c)
    if c.hits > 0 then
      if c.held == 0 then
        redis.call('DEL', c.key)
        redis.call('RPUSH', c.key, '0:0')
        c.last_at, c.last_total, c.length = 0, 0, 1
      end
      c.last_total = c.last_total + c.hits
      if c.length > 1 and c.last_at >= now then
        redis.call('LSET', c.key, -1, text(c.last_at) .. ':' .. text(c.last_total))
      else
        c.last_at = now
        redis.call('RPUSH', c.key, text(now) .. ':' .. text(c.last_total))
        c.length = c.length + 1
      end
      c.held = c.held + c.hits
    else
      local back = math.min(-c.hits, c.held)
      c.held = c.held - back
      while back > 0 do
        local _, before = entry(c, -2)
        local taken = math.min(back, c.last_total - before)
        c.last_total, back = c.last_total - taken, back - taken
        if c.last_total == before then
          redis.call('RPOP', c.key)
          c.last_at, c.last_total = entry(c, -1)
          c.length = c.length - 1
        else
          redis.call('LSET', c.key, -1, text(c.last_at) .. ':' .. text(c.last_total))
        end
      end
    end
    if c.held > 0 then
      redis.call('PEXPIRE', c.key, text(math.max(c.last_at + c.period - now, 0) + GRACE))
    else
      redis.call('DEL', c.key)
    end
  end,
  resets_in = function(c)
    return c.held > 0 and c.last_at + c.period - now or 0
  end,
  retry_in = function(c)
    local enough = c.last_total + c.added - c.limit
    local index = lowest(1, c.length - 1, function(index)
      local _, total = entry(c, index)
      return total >= enough
    end)
    return entry(c, index) + c.period - now
  end,
}

-- full_at:parts:rate. A millisecond has `rate` parts, a token as many as the period milliseconds.
local function save_debt(c)
  local millis = math.floor(c.debt / c.extra)
  local parts = c.debt - millis * c.extra
  save(c, text(now + millis) .. ':' .. text(parts) .. ':' .. text(c.extra), millis)
end

ways.t = {
  look = function(c)
    c.debt = 0
    local state = redis.call('GET', c.key)
    c.is_there = state
    if state then
      local found = numbers(state)
      if found[1] >= now then
        local debt, most = (found[1] - now) * found[3] + found[2], c.limit * c.period
        c.debt = math.min(debt, most)
        if debt > most or found[3] ~= c.extra then save_debt(c) end
      end
    end
    c.held = math.ceil(c.debt / c.period)
  end,
  charge = function(c)
    c.debt = math.max(c.debt + c.hits * c.period, 0)
    c.held = math.ceil(c.debt / c.period)
    -- To give back to a bucket that was never drawn from leaves no trace.
    if c.is_there or c.hits > 0 then save_debt(c) end
  end,
  resets_in = function(c)
    return math.ceil(c.debt / c.extra)
  end,
  retry_in = function(c)
    return math.ceil((c.debt - (c.limit - c.added) * c.period) / c.extra)
  end,
}

-- Looks first, at all of them. A descriptor may come twice: then the hits ahead count as well.
local counters, over, quotas = {}, {}, {}
local times, ahead = {}, {}
local is_any_over, is_refused = false, false
for i, key in ipairs(KEYS) do
  local at = FIELDS * (i - 1) + 2
  local c = {
    key = key,
    way = ways[ARGV[at]],
    charge = ARGV[at + 1],
    descriptor = ARGV[at + 3],
    hits_text = ARGV[at + 4],
    hits = tonumber(ARGV[at + 4]),
    limit = tonumber(ARGV[at + 5]),
    period = tonumber(ARGV[at + 6]),
    extra = tonumber(ARGV[at + 7]),
  }
  c.added = math.max(c.hits, 0)
  c.way.look(c)
  times[key] = (times[key] or 0) + 1
  c.before = c.held + (ahead[key] or 0)
  c.is_over = c.hits >= 0 and c.before + c.hits > c.limit
  if c.hits > 0 and c.charge ~= 's' and (c.charge == 'a' or not c.is_over) then
    ahead[key] = (ahead[key] or 0) + c.hits
  end
  local voice = ARGV[at + 2]
  if voice == 'q' then quotas[c.descriptor] = true end
  if c.is_over then
    is_any_over, over[c.descriptor] = true, true
    if voice == 'r' then is_refused = true end
  end
  counters[i] = c
end

if next(quotas) then
  local are_all_over = true
  for descriptor in pairs(quotas) do are_all_over = are_all_over and over[descriptor] end
  is_refused = is_refused or are_all_over
end

local function charges(c)
  if c.hits < 0 or c.charge == 'a' then return true end
  if c.charge == 'w' then return not c.is_over end
  if c.charge == 'm' then return not is_refused and not over[c.descriptor] end
  return c.is_over or not is_any_over
end

local reply = {}
for _, c in ipairs(counters) do
  local is_charged = charges(c)
  if times[c.key] > 1 then c.way.look(c) end
  if is_charged and c.hits ~= 0 then c.way.charge(c) end
  -- Hits ahead of it on the same counter that are not charged either wait with it.
  local waiting = 0
  if c.is_over and not is_charged then waiting = math.max(c.before - c.held, 0) end
  c.added = c.added + waiting
  local resets_in, retry_in = 0, 0
  if c.way.resets_in then
    resets_in = c.way.resets_in(c)
    if c.held + (is_charged and 0 or c.added) > c.limit then
      retry_in = c.added > c.limit and -1 or c.way.retry_in(c)
    end
  end
  reply[#reply + 1] = c.held + waiting
  reply[#reply + 1] = is_charged and 1 or 0
  reply[#reply + 1] = resets_in
  reply[#reply + 1] = retry_in
end
return reply
