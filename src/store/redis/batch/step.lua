-- One request, or a part of one, as an atomic step: looks at every counter, then charges those that the
-- rules require. src/core/algorithm.rs and src/core/charging.rs explain the algorithms and the charging; the store
-- contract holds this script to the same model.
--
-- KEYS: the counters, all of one hash slot.
-- ARGV: milliseconds since the epoch, or -1 for this server's clock; then for each key the fields that
--       step.rs lists: its algorithm, its operation, the effect of an exceeded limit, descriptor, hits,
--       limit, period in milliseconds, and either the seconds that a window's counter lives, the tokens
--       that flow into a bucket in a period, or the lease that names slots. Hits that are reserved of a
--       bucket say rate:0, and at their end rate:reserved:era:drained. If the hits are leased, the moment
--       of this server's clock follows after which their caller does not wait any more.
-- Reply: four numbers for each key: hits held (plus earlier uncharged hits of this request on the same
--        key), charged 0 or 1, or the place era:drained of a reservation, milliseconds until the counter is
--        empty, and milliseconds until the same hits would pass (-1 if never). Both times are 0 for windows,
--        because the caller knows them. One more number follows if it is not 0: how many counters were so
--        far ahead that they were dropped.

local GRACE = 1000
-- How far the clocks of callers may differ, in milliseconds, where each counts by its own: a day, as in
-- step.rs, which is more than the offset of any time zone from UTC. No client is locked out for so
-- long, because a key lives only as long as it has an effect by the clock that is ahead.
local SKEW = 24 * 60 * 60 * 1000
-- No returned count exceeds this, as Hits::MAX.
local MOST = 2 ^ 62
local FIELDS = 8

local function server_time()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local now = tonumber(ARGV[1])
local is_one_clock = now < 0
if is_one_clock then now = server_time() end

-- What is leased for a caller that has left would belong to nobody: nothing is charged, and the reply is this time.
local ends = tonumber(ARGV[2 + FIELDS * #KEYS] or '0')
if ends > 0 then
  local time = is_one_clock and now or server_time()
  if time > ends then return { time, 0 } end
end

-- Writes numbers up to 2^53 without an exponent.
local function text(number)
  return string.format('%.0f', number)
end

-- The whole numbers in a text such as 12:7:0. Earlier versions left counts below zero, which are read as 0.
local function numbers(state)
  local found = {}
  for number in string.gmatch(state, '-?%d+') do
    found[#found + 1] = tonumber(number)
  end
  return found
end

-- The present of a counter: `latest`, the moment that it remembers, until the caller's clock is past it.
-- Returns nil if that is so far ahead that the clock which it came from was wrong.
local forgotten = 0
local function present(c, latest)
  local most = is_one_clock and c.period or math.max(c.period, SKEW)
  if latest <= now + most then return math.max(now, latest) end
  forgotten = forgotten + 1
end

-- The time to live of a key that has an effect for `lives` milliseconds. Where clocks differ, no caller
-- shortens the time that another one set.
local function lasting(c, lives)
  lives = math.max(lives, 0) + GRACE
  if not is_one_clock then lives = math.max(lives, redis.call('PTTL', c.key)) end
  return text(lives)
end

local function save(c, state, lives)
  redis.call('SET', c.key, state, 'PX', lasting(c, lives))
end

-- Each by its letter. An algorithm is made when a counter needs it: a script runs from its beginning each time, and few
-- requests need more than one.
local algorithms, made = {}, {}
local function algorithm(letter)
  made[letter] = made[letter] or algorithms[letter]()
  return made[letter]
end

function algorithms.w()
  return {
    look = function(c)
      local count = tonumber(redis.call('GET', c.key) or '0')
      c.is_below, c.held = count < 0, math.max(count, 0)
    end,
    charge = function(c)
      if c.hits > 0 then
        -- This is above every limit, and Redis does not count much further.
        if c.held >= MOST then return end
        if c.is_below then redis.call('SET', c.key, '0', 'KEEPTTL') end
        -- The text, because hits can be more than a Lua number represents exactly.
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
end

-- start:count
function algorithms.f()
  return {
    look = function(c)
      local state = redis.call('GET', c.key)
      c.held, c.now = 0, now
      if state then
        local found = numbers(state)
        c.now = present(c, found[1])
        if not c.now then
          redis.call('DEL', c.key)
          c.now = now
        elseif c.now < found[1] + c.period then
          c.start, c.held = found[1], math.max(found[2], 0)
        end
      end
    end,
    charge = function(c)
      if not c.start and c.hits < 0 then
        redis.call('DEL', c.key)
        return
      end
      if c.hits > 0 or c.held > 0 then
        c.held = math.min(c.held + c.hits, MOST)
        if c.hits < 0 then c.held = math.max(c.held, 0) end
      end
      c.start = c.start or c.now
      save(c, text(c.start) .. ':' .. text(c.held), c.start + c.period - c.now)
    end,
    resets_in = function(c)
      return c.start and c.start + c.period - c.now or 0
    end,
    retry_in = function(c)
      return c.start + c.period - c.now
    end,
  }
end

-- index:current:previous
function algorithms.s()
  local function share(c)
    c.held = c.current + math.ceil(c.previous * c.left / c.period)
  end

  local function add_weighted(c, hits)
    if hits > 0 then
      c.current = c.current + hits
    else
      c.previous = math.max(c.previous - math.max(-hits - c.current, 0), 0)
      c.current = math.max(c.current + hits, 0)
    end
    share(c)
  end

  return {
    look = function(c)
      c.now, c.current, c.previous = now, 0, 0
      local state = redis.call('GET', c.key)
      c.is_there = state
      if state then
        local found = numbers(state)
        c.now = present(c, found[1] * c.period)
        if not c.now then
          redis.call('DEL', c.key)
          c.now = now
        else
          local index = math.floor(c.now / c.period)
          if found[1] == index then
            c.current, c.previous = found[2], found[3]
          elseif found[1] == index - 1 then
            c.previous = found[2]
          end
        end
      end
      c.index = math.floor(c.now / c.period)
      c.left = c.period - (c.now - c.index * c.period)
      share(c)
    end,
    -- The hits it would hold after `ahead` more hits and then these, which are given back.
    held_after = function(c, ahead)
      local copy = { current = c.current, previous = c.previous, left = c.left, period = c.period }
      add_weighted(copy, ahead)
      add_weighted(copy, c.hits)
      return copy.held
    end,
    charge = function(c)
      add_weighted(c, c.hits)
      if not c.is_there and c.hits < 0 then return end
      local state = text(c.index) .. ':' .. text(c.current) .. ':' .. text(c.previous)
      save(c, state, (c.index + 2) * c.period - c.now)
    end,
    resets_in = function(c)
      local stop = (c.index + 1) * c.period
      if c.current > 0 then stop = stop + c.period elseif c.previous == 0 then return 0 end
      return stop - c.now
    end,
    retry_in = function(c)
      local stop, older, room = (c.index + 1) * c.period, c.previous, c.limit - c.added
      if c.current > room then
        stop, older = stop + c.period, c.current
      else
        room = room - c.current
      end
      return stop - math.min(math.floor(room * c.period / math.max(older, 1)), c.period) - c.now
    end,
  }
end

function algorithms.l()
  -- The lowest index in [low, high] for which `is_so` holds, or high + 1. It has to hold for all indexes
  -- after it.
  local function lowest(low, high, is_so)
    while low <= high do
      local middle = math.floor((low + high) / 2)
      if is_so(middle) then high = middle - 1 else low = middle + 1 end
    end
    return low
  end

  -- A list of at:total, where each total includes all hits up to there. The first entry has left the
  -- period, or is 0:0, and only marks where counting begins. Other entries that have left since are
  -- removed with the next hit.
  local function entry(c, index)
    local state = redis.call('LINDEX', c.key, index)
    if state then
      local found = numbers(state)
      return found[1], found[2]
    end
  end

  return {
    look = function(c)
      c.held, c.now = 0, now
      c.last_at, c.last_total = entry(c, -1)
      if not c.last_at then return end
      c.now = present(c, c.last_at)
      if not c.now then
        redis.call('DEL', c.key)
        c.now = now
        return
      end
      local length = redis.call('LLEN', c.key)
      local first = lowest(1, length - 1, function(index) return entry(c, index) + c.period > c.now end)
      -- Entries in front of it have left the period, at least by the clock of this caller.
      c.mark, c.length = first - 1, length - first + 1
      local _, before = entry(c, c.mark)
      c.held = c.last_total - before
    end,
    charge = function(c)
      if c.held > 0 and c.mark > 0 then
        redis.call('LTRIM', c.key, c.mark, -1)
        c.mark = 0
      end
      if c.hits > 0 then
        if c.held == 0 then
          redis.call('DEL', c.key)
          redis.call('RPUSH', c.key, '0:0')
          c.last_at, c.last_total, c.mark, c.length = 0, 0, 0, 1
        end
        local is_same = c.length > 1 and c.last_at == c.now
        c.last_at, c.last_total = c.now, c.last_total + c.hits
        c.held = c.held + c.hits
        local new = text(c.last_at) .. ':' .. text(c.last_total)
        if is_same then
          redis.call('LSET', c.key, -1, new)
        else
          redis.call('RPUSH', c.key, new)
          c.length = c.length + 1
        end
      else
        local back = math.min(-c.hits, c.held)
        c.held = c.held - back
        -- If all hits leave, the key does.
        while back > 0 and c.held > 0 do
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
        redis.call('PEXPIRE', c.key, lasting(c, c.last_at + c.period - c.now))
      else
        redis.call('DEL', c.key)
      end
    end,
    resets_in = function(c)
      return c.held > 0 and c.last_at + c.period - c.now or 0
    end,
    retry_in = function(c)
      local enough = c.last_total + c.added - c.limit
      local index = lowest(c.mark + 1, c.mark + c.length - 1, function(index)
        local _, total = entry(c, index)
        return total >= enough
      end)
      return entry(c, index) + c.period - c.now
    end,
  }
end

function algorithms.t()
  -- full_at:parts:rate:millis:limit, and of a bucket that was reserved from also :reserved:era:drained:from:to. A
  -- millisecond has `rate` parts, and a token as many parts as the period has milliseconds. The missing tokens were
  -- saved `millis` milliseconds before full_at, under `limit`. A state without the last two is from an earlier version.
  -- Each version reads those of later ones, and forgets what it does not know.
  local function save_missing(c)
    local missing = c.spent + c.reserved
    local millis = math.floor(missing / c.rate)
    local parts = missing - millis * c.rate
    local words = { text(c.now + millis), text(parts), text(c.rate), text(millis), text(c.limit) }
    if c.era > 0 then
      for _, number in ipairs({ c.reserved, c.era, c.drained, c.from, c.to }) do words[#words + 1] = text(number) end
    end
    save(c, table.concat(words, ':'), millis)
  end

  local function flow(c, inflow)
    local drains = math.min(math.max(inflow - c.spent, 0), c.reserved)
    c.spent = math.max(c.spent - inflow, 0)
    c.reserved, c.drained = c.reserved - drains, c.drained + drains
    -- Larger numbers are not exact. The next reservation begins another era.
    if c.drained > 2 ^ 52 then c.spent, c.reserved = c.spent + c.reserved, 0 end
  end

  local function see(c)
    c.spent = math.min(c.spent, c.limit * c.period)
    c.missing = c.spent + c.reserved
    c.held = math.min(math.ceil(c.missing / c.period), c.limit)
  end

  local function begin_reservation(c, parts)
    if c.reserved == 0 then
      c.era, c.drained, c.from, c.to = math.max(c.now, c.era + 1), 0, 0, 0
    end
    c.place = text(c.era) .. ':' .. text(c.drained)
    c.reserved = c.reserved + parts
  end

  -- Returns how many of the parts drained.
  local function end_reservation(c, parts)
    if c.of_era == 0 or c.of_era ~= c.era or c.began > c.drained then return parts end
    local is_next = c.from <= c.began and c.began <= c.to
    local lowest = is_next and c.to or c.began
    local drained = math.min(parts, c.drained - lowest)
    if is_next then
      c.to = lowest + drained
    elseif c.began > c.to + parts or c.began < c.from and drained > c.to - c.from then
      c.from, c.to = c.began, c.began + drained
    end
    c.reserved = c.reserved - math.min(parts - drained, c.reserved)
    return drained
  end

  return {
    look = function(c)
      c.now, c.spent, c.reserved, c.era, c.drained, c.from, c.to = now, 0, 0, 0, 0, 0, 0
      c.rate, c.ends, c.of_era, c.began = unpack(numbers(c.extra_text))
      local state = redis.call('GET', c.key)
      c.is_there = state
      if state then
        local full_at, parts, rate, millis, limit, reserved, era, drained, from, to = unpack(numbers(state))
        millis, limit = millis or math.max(full_at - now, 0), limit or c.limit
        if era then c.reserved, c.era, c.drained, c.from, c.to = reserved, era, drained, from, to end
        c.spent = millis * rate + parts - c.reserved
        local since = full_at - millis
        c.now = present(c, since)
        local is_as_saved = c.now and rate == c.rate and limit == c.limit
        if not c.now then c.now, since = now, now end
        if not is_as_saved then
          flow(c, (c.now - since) * rate)
          since = c.now
          if c.spent + c.reserved > 0 then save_missing(c) end
        end
        c.spent = math.min(c.spent, c.limit * c.period)
        flow(c, (c.now - since) * rate)
      end
      see(c)
    end,
    -- No more tokens can be missing than the bucket holds.
    held_after = function(c, ahead)
      return math.max(math.min(c.held + ahead, c.limit) + c.hits, 0)
    end,
    charge = function(c)
      local added, back = c.added * c.period, (c.added - c.hits) * c.period
      if not c.ends then
        c.spent = c.spent + added
        flow(c, back)
      elseif c.ends == 0 then
        begin_reservation(c, added)
      else
        local reserved = c.ends * c.period
        c.spent = c.spent + math.max(reserved + added - back - end_reservation(c, reserved), 0)
      end
      -- Giving back to a bucket that was never drawn from leaves no trace.
      if c.is_there or c.hits > 0 then save_missing(c) end
      see(c)
    end,
    resets_in = function(c)
      return math.ceil(c.missing / c.rate)
    end,
    retry_in = function(c)
      return math.ceil((c.missing - (c.limit - c.added) * c.period) / c.rate)
    end,
  }
end

function algorithms.c()
  -- A sorted set: each slot that is taken, and when it leaves by this server's clock. The slots of a lease are
  -- named by it: 17, 17:2, 17:3 and so on.
  local function slot(c, index)
    return index == 1 and c.extra_text or c.extra_text .. ':' .. index
  end

  local function own_slots(c)
    local own = 0
    while redis.call('ZSCORE', c.key, slot(c, own + 1)) do own = own + 1 end
    return own
  end

  return {
    look = function(c)
      c.now = server_time()
      local latest = text(c.now + c.period)
      redis.call('ZREMRANGEBYSCORE', c.key, '-inf', text(c.now))
      -- They were taken by a clock that was ahead.
      for _, ahead in ipairs(redis.call('ZRANGEBYSCORE', c.key, '(' .. latest, '+inf')) do
        redis.call('ZADD', c.key, latest, ahead)
      end
      c.held = redis.call('ZCARD', c.key)
    end,
    held_after = function(c, ahead)
      if c.operation == 'z' then return ahead end
      return c.held - own_slots(c) + ahead
    end,
    charge = function(c)
      if c.operation == 'z' then
        redis.call('DEL', c.key)
      elseif c.hits < 0 then
        local index = 1
        while redis.call('ZREM', c.key, slot(c, index)) == 1 do index = index + 1 end
      else
        -- A request that names the counter twice has slots already.
        local latest, own = text(c.now + c.period), own_slots(c)
        for index = own + 1, own + c.hits do redis.call('ZADD', c.key, latest, slot(c, index)) end
        redis.call('PEXPIRE', c.key, text(c.period + GRACE))
      end
      c.held = redis.call('ZCARD', c.key)
    end,
    resets_in = function(c)
      local oldest = redis.call('ZRANGE', c.key, 0, 0, 'WITHSCORES')
      return oldest[2] and oldest[2] - c.now or 0
    end,
    -- Until so many have left that the hits fit. Most are freed earlier, by their requests.
    retry_in = function(c)
      local last = c.held + c.added - c.limit - 1
      return redis.call('ZRANGE', c.key, last, last, 'WITHSCORES')[2] - c.now
    end,
  }
end

-- Looks at all counters first. A descriptor can occur twice; the earlier hits of the request then count
-- as well.
local counters, over, quotas = {}, {}, {}
local times, ahead = {}, {}
-- The operations that add hits, each with its charging.
local adds = { a = true, w = true, m = true, s = true }
local is_any_over, is_refused = false, false
for i, key in ipairs(KEYS) do
  local at = FIELDS * (i - 1) + 2
  local c = {
    key = key,
    algorithm = algorithm(ARGV[at]),
    operation = ARGV[at + 1],
    enforcement = ARGV[at + 2],
    descriptor = ARGV[at + 3],
    hits_text = ARGV[at + 4],
    hits = tonumber(ARGV[at + 4]),
    limit = tonumber(ARGV[at + 5]),
    period = tonumber(ARGV[at + 6]),
    extra = tonumber(ARGV[at + 7]),
    extra_text = ARGV[at + 7],
  }
  c.added = math.max(c.hits, 0)
  c.algorithm.look(c)
  times[key] = (times[key] or 0) + 1
  c.before = c.held + (ahead[key] or 0)
  local after = c.before + c.hits
  if c.hits < 0 and c.algorithm.held_after then after = c.algorithm.held_after(c, c.before - c.held) end
  c.is_over = after > c.limit
  if c.hits > 0 and c.operation ~= 's' and (c.operation == 'a' or not c.is_over) then
    ahead[key] = (ahead[key] or 0) + c.hits
  end
  if c.enforcement == 'q' then quotas[c.descriptor] = true end
  if c.is_over then
    -- Giving back and looking stop nothing, but a counter that is still above its limit refuses the request.
    is_any_over, over[c.descriptor] = is_any_over or adds[c.operation], true
    if c.enforcement == 'r' then is_refused = true end
  end
  counters[i] = c
end

if next(quotas) then
  local are_all_over = true
  for descriptor in pairs(quotas) do are_all_over = are_all_over and over[descriptor] end
  is_refused = is_refused or are_all_over
end

local function charges(c)
  -- A look charges nothing.
  if c.operation == 'n' then return false end
  if c.operation == 'w' then return not c.is_over end
  if c.operation == 'm' then return not is_refused and not over[c.descriptor] end
  if c.operation == 's' then return c.is_over or not is_any_over end
  return true
end

local reply = {}
for _, c in ipairs(counters) do
  local is_charged = charges(c)
  if times[c.key] > 1 then c.algorithm.look(c) end
  -- Earlier uncharged hits on the same counter count together with these.
  local waiting = 0
  if c.is_over and not is_charged then waiting = math.max(c.before - c.held, 0) end
  if is_charged and (c.hits ~= 0 or c.ends) then c.algorithm.charge(c) end
  c.added = c.added + waiting
  local resets_in, retry_in = 0, 0
  if c.algorithm.resets_in then
    resets_in = c.algorithm.resets_in(c)
    if c.held + c.added > c.limit then
      retry_in = c.added > c.limit and -1 or c.algorithm.retry_in(c)
    end
  end
  reply[#reply + 1] = math.min(c.held + waiting, MOST)
  reply[#reply + 1] = is_charged and (c.place or 1) or 0
  reply[#reply + 1] = resets_in
  reply[#reply + 1] = retry_in
end
if forgotten > 0 then reply[#reply + 1] = forgotten end
return reply
