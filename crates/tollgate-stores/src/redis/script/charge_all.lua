-- Charges all limits of one decision, or none: the algorithms of the tollgate crate, executed where the counters are.
--
-- KEYS     the client's penalty record, if the call has a penalty; then one key per charge.
-- ARGV[1]  a flags byte, then the packed charges (script/call.rs writes them).
-- ARGV[2]  the penalty policy, and ARGV[3] the client's printed name, if the call has a penalty. For compare-and-set:
--          the expected value and the new value.
-- Reply    { now, cooldown or -1, violation added (1) or in cooldown before (2), then per charge: outcome, remaining,
--            wait, reset [, granted, valid for, born, mark [, number, refunded before]] }; times in microseconds. For a
--            call that only settles a lease, "valid for" is 1 if the lease had a record. For a refund: outcome, remaining,
--            wait, reset, 1 if it was applied.
--
-- Numbers are integers up to 2^53, so doubles are exact: limits with larger products are rejected when they are loaded.
-- For such a and b, floor(a / b) and ceil(a / b) are exact too. State is packed, because bytes per counter times clients
-- is the memory that a server needs; docs/redis.md has the layout.
-- The clock is the server's, because callers' clocks differ. A refused request writes nothing. Redis does not roll back a
-- failing script, so everything that can fail comes before the first charge; a full server refuses the first write or none.

local spread, unpack, pack, floor, ceil = unpack, struct.unpack, struct.pack, math.floor, math.ceil
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local arg = ARGV[1]
local flags = unpack('>B', arg)

-- Counters of one limit share hashes, one field each: a key with its own expiry costs more memory than the state. A value
-- begins with the second at which it expires. It expires somewhat later than it matters, so that not every write has to
-- extend the expiry of the hash.

-- Fast path: plain buckets without penalty and lease, the most common decision. The same steps as `judge_bucket` below.
-- Writes that extend the expiry, or that failed for want of memory, are left to `keep`.
local unwritten, answer, fields, lasts, debts, ticks
if flags == 0 then
  local position, plain, admitted = 2, true, true
  answer, fields, lasts, debts, ticks = { now, -1, 0 }, {}, {}, {}, {}
  for index = 1, #KEYS do
    local kind, bits, tick, cost, rate, window, most, field
    kind, bits, tick, cost, rate, window, most, field, position = unpack('>BBI3I4I4I7I7c16', arg, position)
    if kind ~= 1 or bits ~= 0 then plain = false break end
    local value = redis.call('HGET', KEYS[index], field)
    local at, last, debt = floor(now / tick), 0, 0
    if value then
      local unit, written
      last, unit, debt, written = unpack('>I5I3I7I7', value)
      if #value ~= 22 or unit ~= tick or written > at or last * 1000000 <= now or debt > most then plain = false break end
      debt = debt - (at - written) * rate
      if debt < 0 then debt = 0 end
    end
    local wanted, before, outcome, wait = (cost == 0 and 1 or cost) * window, now - at * tick, 1, 0
    if wanted > most - debt then
      admitted, outcome = false, 2
      if wanted <= most then outcome, wait = 0, ceil((wanted - most + debt) / rate) * tick - before end
    elseif cost > 0 then
      debt = debt + wanted
    end
    local reset = rate > 0 and ceil(debt / rate) * tick - before or 0
    local n = 4 * index
    answer[n], answer[n + 1], answer[n + 2], answer[n + 3] = outcome, floor((most - debt) / window), wait, reset < 0 and 0 or reset
    debts[index], fields[index], lasts[index], ticks[index] = cost > 0 and debt, field, last, tick
  end
  if plain then
    if admitted then
      for index = 1, #KEYS do
        local debt, tick, last = debts[index], ticks[index], lasts[index]
        if debt then
          local written = last * 1000000 > now + answer[4 * index + 3]
            and redis.pcall('HSET', KEYS[index], fields[index], pack('>I5I3I7I7', last, tick, debt, floor(now / tick)))
          if type(written) ~= 'number' then
            unwritten = unwritten or {}
            unwritten[#unwritten + 1] = index
          end
        end
      end
    elseif #KEYS > 1 then
      -- Nothing is charged: report the admitting limits as they stand.
      position = 2
      for index = 1, #KEYS do
        local _, tick, cost, rate, window, most, n
        _, _, tick, cost, rate, window, most, _, position = unpack('>BBI3I4I4I7I7c16', arg, position)
        n = 4 * index
        if answer[n] == 1 and cost > 0 then
          local debt = debts[index] - cost * window
          local reset = ceil(debt / rate) * tick - now % tick
          answer[n + 1], answer[n + 3] = floor((most - debt) / window), reset < 0 and 0 or reset
        end
      end
    end
    if not unwritten then return answer end
  end
end

-- Compare-and-set of a value that the fleet shares.
if flags == 16 then
  if redis.call('GET', KEYS[1]) ~= ARGV[2] then return 0 end
  redis.call('SET', KEYS[1], ARGV[3])
  return 1
end

-- Removes expired counters among a sample of the hash. Failing to must not fail the decision.
local function remove_expired(key, sample)
  local fields, second, expired = redis.pcall('HRANDFIELD', key, sample, 'WITHVALUES'), floor(now / 1000000), {}
  for index = 1, #fields, 2 do
    local value = fields[index + 1]
    if #value >= 5 and unpack('>I5', value) <= second then expired[#expired + 1] = fields[index] end
  end
  if #expired > 0 then redis.call('HDEL', key, spread(expired)) end
end

-- A full server refuses writes and does not know which fields have expired: those of this hash make room. The second
-- attempt reports the server's own error.
local function put(key, field, value)
  local reply = redis.pcall('HSET', key, field, value)
  if type(reply) == 'table' then
    if reply.err:find('OOM', 1, true) then remove_expired(key, 512) end
    redis.call('HSET', key, field, value)
  end
end

-- Extends the expiry of the hash to that of this counter. One in sixteen such calls samples 32 fields: with half of them
-- expired, as many are removed as added.
local function outlast(key, field, lasts)
  local left = redis.call('PTTL', key)
  if left < 0 or left < (lasts - floor(now / 1000000)) * 1000 then redis.call('EXPIREAT', key, lasts) end
  if (time[2] + field:byte(16)) % 16 == 0 then remove_expired(key, 32) end
end

-- The second at which a counter expires that matters for `ttl`: as long again, between 30 and 300 seconds, or a quarter
-- of `ttl` beyond 20 minutes.
local function lasting(ttl)
  local longer = floor(ttl / (ttl > 1200000000 and 4000000 or 1000000))
  if longer > 300 and ttl <= 1200000000 then longer = 300 elseif longer < 30 then longer = 30 end
  return floor((now + ttl) / 1000000) + longer + 1
end

local function keep(c, key, state, ttl)
  -- A wrong clock also wrote a wrong expiry. A lower limit than the one that was charged does not extend it.
  local last = not c.healed and (c.above or c.lasts * 1000000 > now + ttl) and c.lasts or lasting(ttl)
  put(key, c.field, pack('>I5', last) .. state)
  if last ~= c.lasts then outlast(key, c.field, last) end
end

if unwritten then
  for _, index in ipairs(unwritten) do
    local state = pack('>I3I7I7', ticks[index], debts[index], floor(now / ticks[index]))
    keep({ field = fields[index], lasts = lasts[index] }, KEYS[index], state, answer[4 * index + 3])
  end
  return answer
end

local has = function(number, bit) return floor(number / bit) % 2 == 1 end
-- How long a lease is valid at most; script.rs has the same constant.
local LEASE = 2000000
-- How long before it lapses a lease of a bucket ends, so that the node has time to return it.
local LEASE_RETURN = 500000
-- How long the record of a lease is kept at least if the lease is not settled.
local LEASE_RECORD = 60000000
local dry, has_penalty, forced = has(flags, 1), has(flags, 2), has(flags, 4)

-- Whether a state is so far ahead of the clock that the clock that wrote it was wrong.
local function too_far(at, length)
  local tolerance = 2 * length
  if tolerance < 60000000 then tolerance = 60000000 end
  return at > now + tolerance
end

local function wait_until(instant)
  return instant > now and instant - now or 0
end

local function valid_until(stop)
  local left = wait_until(stop)
  return left < LEASE and left or LEASE
end

-- ceil(part * length / whole) with part <= whole < 2^32, exact even if the product exceeds 2^53.
local function share(part, whole, length)
  if part * length <= 9007199254740992 then return ceil(part * length / whole) end
  local quotient, rest = 0, 0
  for _, unit in ipairs({ 1099511627776, 1048576, 1 }) do
    local digits = floor(length / unit) % 1048576
    local step = rest * 1048576 + part * digits
    quotient, rest = quotient * 1048576 + floor(step / whole), step % whole
  end
  return rest > 0 and quotient + 1 or quotient
end

local function find(c, key)
  local value, last = redis.call('HGET', key, c.field), 0
  if value then last = unpack('>I5', value) end
  -- An expired counter counts as absent whether or not it was removed.
  if last * 1000000 <= now then value = false end
  c.lasts = last
  return value
end

-- Each judge_* fills `c` with outcome (0 refuse, 1 admit, 2 never), wait, remaining and reset before the charge, the reset
-- after it, and what write_* needs. Each write_* stores the state; `extra` is what a lease takes beyond the charge.

-- A debt takes seven bytes. Only a limit that is counted in coarser ticks can owe more.
local DEBT_MAX = 36028797018963968

-- A refund of a charge brings the refill of later charges forward, not that of earlier ones. So a bucket with charges that
-- may be refunded keeps how many they were, the sum of the oldest refunds, and the latest ones: the number of the charge
-- and what was refunded of it, ascending. The sum starts high, so that what is subtracted for rounding leaves it positive.
local REFUNDS_MAX, REFUNDED_START, REFUNDED_MAX = 8, 4294967296, 4503599627370496

local function read_refunds(c, value)
  local position
  c.charged, c.refunded, position = unpack('>I4I7', value, 44)
  c.refunds = {}
  while position <= #value do
    local order, debt
    order, debt, position = unpack('>I4I7', value, position)
    c.refunds[#c.refunds + 1] = { order, debt }
  end
end

local function pack_refunds(c)
  local packed = pack('>I4I7', c.charged, c.refunded)
  for _, refund in ipairs(c.refunds) do packed = packed .. pack('>I4I7', refund[1], refund[2]) end
  return packed
end

local function refunded_before(c, order)
  local sum = c.refunded
  for _, refund in ipairs(c.refunds) do
    if refund[1] < order then sum = sum + refund[2] end
  end
  return sum
end

local function note_refund(c, back)
  if not c.refunds or back == 0 then return end
  -- Units that belong to no numbered charge count as the oldest.
  if not c.later then c.refunded = c.refunded + back return end
  local index = #c.refunds + 1
  while index > 1 and c.refunds[index - 1][1] > c.order do index = index - 1 end
  table.insert(c.refunds, index, { c.order, back })
  if #c.refunds > REFUNDS_MAX then c.refunded = c.refunded + table.remove(c.refunds, 1)[2] end
end

-- Numbers a charge that may be refunded later, after which the bucket owes `debt`.
local function number_charge(c, debt)
  if c.born == 0 then c.born = now end
  if not c.refunds then c.charged, c.refunded, c.refunds = 0, REFUNDED_START, {} end
  -- Before the numbers overflow, a new generation begins: earlier charges stay counted.
  if c.charged >= 4294967295 or c.refunded > REFUNDED_MAX then
    c.born, c.charged, c.refunded, c.refunds = now, 0, REFUNDED_START, {}
  end
  c.charged = c.charged + 1
  c.given_order = c.charged
  -- The instant at which the charge is paid back was rounded up to a whole tick.
  c.given_refunded = refunded_before(c, c.charged) - (c.rate - debt % c.rate) % c.rate
end

-- Whether requests behind the refunded one wait for their start: the queue does not move, unless it was the last.
local function holds_place(c, debt, at)
  local has_queue = c.kind == 3 or c.kind == 2 and debt > c.at_once
  return has_queue and (at + ceil(debt / c.rate)) * c.tick ~= c.mark
end

-- The tick in which leases of an epoch lapse.
local function lapse_of(c, epoch)
  return ceil((epoch + 2) * LEASE / c.tick)
end

-- Settles a lease as of tick `at`, when all of its used units had been used. `born` identifies leases from before a reset.
local function settle_bucket_lease(c, debt, at)
  if c.granted == 0 or c.given_born ~= c.born then return debt end
  local back = c.unspent * c.window
  if c.mark == c.epoch then c.current = c.current - c.granted
  elseif c.mark == c.epoch - 1 then c.earlier = c.earlier - c.granted
  else
    -- It has lapsed. What was paid back since is not returned once more.
    local paid = (at - lapse_of(c, c.mark)) * c.rate
    if paid > 0 then back = paid < back and back - paid or 0 end
  end
  if c.current < 0 then c.current = 0 end
  if c.earlier < 0 then c.earlier = 0 end
  c.settled = true
  if back > debt then back = debt end
  local lost = c.unspent * c.window - back
  if lost > debt - back then lost = debt - back end
  c.lost = floor(lost / c.window)
  note_refund(c, back)
  return debt - back
end

-- Takes back a charge of a decision that another shard refused, or one whose response is refunded.
local function refund_bucket(c, debt, at)
  if c.leased or c.unspent == 0 or now >= c.mark then return debt end
  -- At its mark, the refunded charge would be paid back along with the debt before it. Only what time has not paid back
  -- by now is refunded: more would free what other requests have taken since.
  local back, owed = c.unspent * c.window, (ceil(c.mark / c.tick) - at) * c.rate
  if c.later then
    if c.given_born ~= c.born or not c.refunds or holds_place(c, debt, at) then return debt end
    owed = owed - refunded_before(c, c.order) + c.given_refunded
  end
  if owed <= 0 then return debt end
  c.settled = true
  if owed < back then back = owed end
  if back > debt then back = debt end
  note_refund(c, back)
  return debt - back
end

-- The debt at tick `ticks`, given the debt at tick `at`. Leased units stay owed: they may be used at the last moment, and
-- if they were paid back before that the capacity could be used twice.
local function pay_back(c, debt, at, ticks)
  if ticks > at then debt, at = debt - (ticks - at) * c.rate, ticks end
  local leased = (c.earlier + c.current) * c.window
  return debt < leased and leased or debt, at
end

-- A lease is outstanding until the end of the epoch after its own, longer than it is valid. Leases of crashed nodes lapse
-- by then, and their units are paid back from then on.
local function advance(c, debt, at, ticks)
  local epoch = floor(ticks * c.tick / LEASE)
  while c.epoch < epoch and c.earlier + c.current > 0 do
    local lapse = lapse_of(c, c.epoch - 1)
    debt, at = pay_back(c, debt, at, lapse < ticks and lapse or ticks)
    c.lapsed = c.lapsed or c.earlier > 0
    c.earlier, c.current, c.epoch = c.current, 0, c.epoch + 1
  end
  if c.epoch < epoch then c.epoch = epoch end
  return pay_back(c, debt, at, ticks)
end

local function judge_bucket(c, key)
  local value = find(c, key)
  local ticks, epoch = floor(now / c.tick), floor(now / LEASE)
  local debt, at = 0, ticks
  c.epoch, c.earlier, c.current = epoch, 0, 0
  if value then
    local unit
    unit, debt, at = unpack('>I3I7I7', value, 6)
    if unit ~= c.tick then
      debt = unit > c.tick and debt * (unit / c.tick) or ceil(debt / (c.tick / unit))
      if debt > DEBT_MAX then debt = DEBT_MAX end
      -- Rounding down would pay back the part of a tick before the write once more.
      at = ceil(at * unit / c.tick)
    end
    if too_far(at * c.tick, c.length) then at, c.healed = ticks, true end
    if #value > 22 then
      c.born, c.epoch, c.earlier, c.current = unpack('>I7I6I4I4', value, 23)
      if c.healed then c.epoch, c.earlier, c.current = epoch, 0, c.earlier + c.current end
    end
    -- In another tick, or moved by a wrong clock, what was refunded means something else.
    if #value > 43 and unit == c.tick and not c.healed then read_refunds(c, value) end
  end
  local outstanding = c.earlier + c.current > 0
  if c.granted > 0 then
    local used_at = ceil((now - c.idle) / c.tick)
    debt, at = advance(c, debt, at, used_at < ticks and used_at or ticks)
    debt = settle_bucket_lease(c, debt, at)
  end
  debt, at = advance(c, debt, at, ticks)
  debt = pay_back(c, refund_bucket(c, debt, at), at, at)
  -- A lease that has lapsed can still be returned while anything is owed.
  if debt == 0 then c.refunds, c.born = nil, 0 end
  if outstanding and c.earlier + c.current == 0 and not c.lapsed and not c.refunds then c.born = 0 end
  c.debt, c.at, c.stop = debt, at, (epoch + 2) * LEASE - LEASE_RETURN

  -- The debt may exceed the capacity if other callers have higher limits. It is not cut: they would get the difference
  -- again. It refuses no longer than until the counter expires.
  local room, wanted = c.most - debt, (c.cost == 0 and 1 or c.cost) * c.window
  c.above = room < 0
  c.remaining, c.wait = c.above and 0 or floor(room / c.window), 0
  c.reset = c.rate > 0 and wait_until((at + ceil(debt / c.rate)) * c.tick) or 0
  if wanted > c.most then c.outcome = 2 return end
  if wanted > room then
    c.outcome, c.wait = 0, wait_until((at + ceil((wanted - room) / c.rate)) * c.tick)
    local left = c.lasts * 1000000 - now
    if c.above and left < c.wait then c.wait = left end
    if c.above and left < c.reset then c.reset = left end
    return
  end
  c.outcome = 1
  if c.kind == 3 then
    if debt > 0 then c.wait = wait_until((at + ceil(debt / c.rate)) * c.tick) end
  elseif c.kind == 2 and debt + wanted > c.at_once then
    c.wait = wait_until((at + ceil((debt + wanted - c.at_once) / c.rate)) * c.tick)
  end
  if c.cost > 0 then c.charged_reset = wait_until((at + ceil((debt + wanted) / c.rate)) * c.tick) end
end

local function write_bucket(c, key, taken, extra)
  local debt = c.debt + (taken + extra) * c.window
  if debt > c.most then debt = c.above and c.debt or c.most end
  local state = pack('>I3I7I7', c.tick, debt, c.at)
  local ttl = wait_until((c.at + ceil(debt / (c.rate > 0 and c.rate or 1))) * c.tick)
  if extra > 0 and c.born == 0 then c.born = now end
  if c.later and taken > 0 then number_charge(c, debt) end
  if c.born > 0 then
    local current = c.current + extra
    state = state .. pack('>I7I6I4I4', c.born, c.epoch, c.earlier, current)
    if c.refunds then state = state .. pack_refunds(c) end
    -- Leases that are never settled are paid back from when they lapse.
    local lapsed = 2 * LEASE + ceil((c.earlier + current) * c.window / (c.rate > 0 and c.rate or 1)) * c.tick
    if ttl < lapsed then ttl = lapsed end
  end
  c.given_mark = c.epoch
  keep(c, key, state, ttl)
end

local function judge_fixed(c, key)
  local value = find(c, key)
  local used, at = 0, nil
  if value then
    used, at = unpack('>I4I7', value, 6)
    c.born = #value > 16 and (unpack('>I7', value, 17)) or 0
    if too_far(at, c.length) then
      at, c.healed = c.bounds(now), true
    end
  end
  -- A count from a window ahead of the clock still stands: that window is the current one.
  c.start, c.stop = c.bounds(at and at > now and at or now)
  if not at or at < c.start then used, c.born = 0, 0 end
  if c.unspent > 0 and c.mark == c.start and (not c.by_born or c.given_born == c.born) then
    used, c.settled = used - c.unspent, true
    if used < 0 then used = 0 end
  end
  c.used = used
  local left, wanted = c.rate - used, c.cost == 0 and 1 or c.cost
  if left < 0 then left = 0 end
  c.remaining, c.wait, c.reset = left, 0, used > 0 and wait_until(c.stop) or 0
  if wanted > left then
    if c.cost > c.rate or c.rate == 0 then c.outcome = 2
    else c.outcome, c.wait = 0, wait_until(c.stop) end
    return
  end
  c.outcome, c.charged_reset = 1, wait_until(c.stop)
end

local function write_fixed(c, key, taken, extra)
  local used = c.used + taken + extra
  if used > 4294967295 then used = 4294967295 end
  local state = pack('>I4I7', used, c.start)
  if (extra > 0 or c.later and taken > 0) and c.born == 0 then c.born = now end
  if c.born > 0 then state = state .. pack('>I7', c.born) end
  c.given_mark = c.start
  keep(c, key, state, wait_until(c.stop))
end

-- The counts of this window and the previous one without the unspent units of a lease of either: units of the previous
-- window still weigh, and the node that returns them cannot use them any more. `born` identifies leases and charges from
-- before a reset. Only the current window accepts a refund.
local function settle_sliding(c, start, current, previous)
  if c.unspent == 0 or (c.by_born and c.given_born ~= c.born) then return current, previous end
  if c.mark == start then
    current, c.settled = current - c.unspent, true
  elseif c.leased and c.mark == start - c.window then
    previous, c.settled = previous - c.unspent, true
  end
  return current > 0 and current or 0, previous > 0 and previous or 0
end

local function judge_sliding(c, key)
  local value = find(c, key)
  local ticks = floor(now / c.tick)
  local elapsed = ticks % c.window
  local start, current, previous = ticks - elapsed, 0, 0
  c.born = 0
  if value then
    local at
    current, previous, at = unpack('>I4I4I7', value, 6)
    c.born = #value > 20 and (unpack('>I7', value, 21)) or 0
    -- Counts of a wrong clock move to other windows, which accept no returned units.
    if too_far(at, c.length) then at, c.healed, c.born = start * c.tick, true, 0 end
    local stored = floor(at / c.tick)
    if stored > start then start, elapsed = stored, 0
    elseif stored + c.window == start then previous, current = current, 0
    elseif stored ~= start then current, previous, c.born = 0, 0, 0 end
  end
  current, previous = settle_sliding(c, start, current, previous)
  c.start, c.current, c.previous, c.stop = start, current, previous, (start + c.window) * c.tick
  local fading, wanted = previous * (c.window - elapsed), c.cost == 0 and 1 or c.cost
  local left = current < c.rate and (c.rate - current) * c.window - fading or 0
  c.remaining, c.wait = left > 0 and floor(left / c.window) or 0, 0
  local windows = current > 0 and 2 or (previous > 0 and 1 or 0)
  c.reset = windows > 0 and wait_until((start + windows * c.window) * c.tick) or 0
  if wanted > c.rate then c.outcome = 2 return end
  local spare = c.rate - wanted
  if current > spare or (spare - current) * c.window < fading then
    local ticks_on
    if current <= spare then ticks_on = share(previous - (spare - current), previous, c.window)
    else ticks_on = c.window + share(current - spare, current, c.window) end
    c.outcome, c.wait = 0, wait_until((start + ticks_on) * c.tick)
    return
  end
  c.outcome, c.charged_reset = 1, wait_until((start + 2 * c.window) * c.tick)
end

local function write_sliding(c, key, taken, extra)
  local current = c.current + taken + extra
  if current > 4294967295 then current = 4294967295 end
  local state = pack('>I4I4I7', current, c.previous, c.start * c.tick)
  if (extra > 0 or c.later and taken > 0) and c.born == 0 then c.born = now end
  if c.born > 0 then state = state .. pack('>I7', c.born) end
  c.given_mark = c.start
  keep(c, key, state, wait_until((c.start + 2 * c.window) * c.tick))
end

-- A log is a list, oldest first. An entry has its time, the total taken before it, and its cost: the use at an instant is
-- the difference of two entries, found by binary search.
local function entry(key, index)
  return unpack('>I7I7I4', redis.call('LINDEX', key, index))
end

-- The first index from `low` on for which `holds(at, before, cost)`; `length` if none.
local function first_entry(key, low, length, holds)
  local high = length
  while low < high do
    local middle = floor((low + high) / 2)
    if holds(entry(key, middle)) then high = middle else low = middle + 1 end
  end
  return low
end

local function judge_log(c, key)
  local length = redis.call('LLEN', key)
  local used, wanted = 0, c.cost == 0 and 1 or c.cost
  c.count, c.first, c.total, c.moment = length, 0, 0, now
  local base, last = 0, nil
  if length > 0 then
    local before, taken, first_before, first_at
    last, before, taken = entry(key, length - 1)
    c.total = before + taken
    first_at, first_before = entry(key, 0)
    if too_far(last, c.length) then
      c.healed, c.total, last = true, c.total - first_before, now
      if c.total > 4294967295 then c.total = 4294967295 end
      used, c.count, length = c.total, 1, 0
    else
      c.moment = last > now and last or now
      if first_at + c.length > c.moment then base = first_before
      else
        c.first = first_entry(key, 1, length, function(at) return at + c.length > c.moment end)
        base = c.total
        if c.first < length then
          local _, before_first = entry(key, c.first)
          base = before_first
        end
      end
      used = c.total - base
    end
  end
  c.last = last
  local left = c.rate - used
  if left < 0 then left = 0 end
  c.remaining, c.wait, c.reset = left, 0, last and wait_until(last + c.length) or 0
  if wanted > c.rate then c.outcome = 2 return end
  if wanted > left then
    local need = used + wanted - c.rate
    c.outcome = 0
    if c.healed then c.wait = wait_until(now + c.length) return end
    local index = first_entry(key, c.first, length, function(_, before, taken)
      return before + taken - base >= need
    end)
    c.wait = wait_until(index < length and entry(key, index) + c.length or c.moment)
    return
  end
  c.outcome, c.charged_reset = 1, wait_until(c.moment + c.length)
end

local function write_log(c, key, taken, _)
  if c.healed then
    redis.call('DEL', key)
    redis.call('RPUSH', key, pack('>I7I7I4', now, 0, c.total))
    c.last = now
  elseif c.first > 0 then
    redis.call('LTRIM', key, c.first, -1)
  end
  if taken > 0 then
    if c.last == c.moment and (c.healed or c.first < c.count) then
      local _, before, sum = entry(key, -1)
      sum = sum + taken
      if sum > 4294967295 then sum = 4294967295 end
      redis.call('LSET', key, -1, pack('>I7I7I4', c.moment, before, sum))
    else
      redis.call('RPUSH', key, pack('>I7I7I4', c.moment, c.total, taken))
    end
    c.given_mark = c.moment
  end
  redis.call('PEXPIRE', key, floor(wait_until((c.last and c.last > c.moment and c.last or c.moment) + c.length) / 1000) + 1)
end

-- Takes back a charge. The instant of its entry identifies it, before and after a reset.
local function refund_log(c, key)
  local found, length = nil, redis.call('LLEN', key)
  for back = 1, length < 1000 and length or 1000 do
    local at = entry(key, -back)
    if at < c.mark then return end
    if at == c.mark then found = back break end
  end
  -- Too many entries since: it stays counted. A partial refund would free units that were used.
  if not found then return end
  for back = 1, found do
    local at, before, taken = entry(key, -back)
    -- Later entries have a smaller total before them.
    if back < found then before = before - c.unspent
    else taken = taken > c.unspent and taken - c.unspent or 0 end
    redis.call('LSET', key, -back, pack('>I7I7I4', at, before, taken))
  end
  c.settled = true
  -- Empty entries at the end would make the log seem in use.
  for _ = 1, length do
    local _, _, taken = entry(key, -1)
    if taken > 0 then return end
    redis.call('RPOP', key)
  end
end

local judges = { judge_bucket, judge_bucket, judge_bucket, judge_fixed, judge_fixed, judge_sliding, judge_log }
local writes = { write_bucket, write_bucket, write_bucket, write_fixed, write_fixed, write_sliding, write_log }

local function aligned(length)
  return function(moment)
    local start = moment - moment % length
    return start, start + length
  end
end

-- Calendar windows have no formula: the caller sends the boundaries around its own clock.
local function between(first, second, third, fourth)
  return function(moment)
    if moment < second then return first, second end
    if moment < third then return second, third end
    if moment < fourth then return third, fourth end
    -- Far ahead of the caller's clock: extrapolate, so that counts are not forgotten at once.
    local length = fourth - third
    local start = moment - (moment - fourth) % length
    return start, start + length
  end
end

local function read_charge(position)
  local c = { unspent = 0, granted = 0, want = 0, born = 0 }
  c.kind, c.bits, c.tick, c.cost, c.rate, c.window, c.most, c.field, position =
    unpack('>BBI3I4I4I7I7c16', arg, position)
  c.length = c.window * c.tick
  if c.kind == 2 then c.at_once, position = unpack('>I7', arg, position) end
  if c.kind == 4 then c.bounds = aligned(c.length) end
  if c.kind == 5 then
    local first, second, third, fourth
    first, second, third, fourth, position = unpack('>I7I7I7I7', arg, position)
    c.bounds = between(first, second, third, fourth)
  end
  if has(c.bits, 4) then
    c.leased, c.by_born = true, true
    c.want, c.nodes, c.granted, c.unspent, c.idle, c.settled_lease, c.new_lease, position =
      unpack('>I4I2I4I4I4c17c17', arg, position)
  end
  c.shadow, c.violation, c.refundable = has(c.bits, 1), has(c.bits, 2), has(c.bits, 16)
  c.refund, c.later = has(c.bits, 8), has(c.bits, 32)
  if c.refund then
    c.mark, c.unspent, position = unpack('>I7I4', arg, position)
    if c.later then
      c.by_born = true
      c.given_born, c.order, c.given_refunded, position = unpack('>I7I4I7', arg, position)
    end
  end
  return c, position
end

-- A granted lease has a record beside its counter: units, `born` and mark. A lease is settled only with its record, which is
-- then removed: a settlement can be repeated, and a lease whose reply was lost be returned, without returning units twice.
local function find_lease(c)
  local value = redis.call('HGET', c.key, c.settled_lease)
  if not value then c.granted, c.unspent = 0, 0 return end
  c.found = true
  c.granted, c.given_born, c.mark = unpack('>I4I7I7', value, 6)
  if c.unspent > c.granted then c.unspent = c.granted end
  if c.want == 0 then c.valid = 1 end
end

local function write_leases(c, extra)
  if c.found then redis.call('HDEL', c.key, c.settled_lease) end
  if extra > 0 then
    keep({ field = c.new_lease, lasts = 0 }, c.key, pack('>I4I7I7', extra, c.born, c.given_mark), LEASE_RECORD)
  end
end

-- A client's penalty record: number of violations, until when refusals belong to the last one, end of the cooldown, the
-- violations, the client's name.
local record, policy, in_cooldown
if has_penalty then
  policy = {}
  local next_at
  policy.detection, policy.threshold, policy.kept, policy.possible, policy.levels, next_at =
    unpack('>I7I4BI7B', ARGV[2])
  policy.next_at = next_at
  record = { violations = {}, episode = 0, cooldown = 0 }
  local value = redis.call('GET', KEYS[1])
  if value then
    local count, position
    count, record.episode, record.cooldown, position = unpack('>BI7I7', value)
    for index = 1, count do record.violations[index], position = unpack('>I7', value, position) end
  end
  -- Violations recorded by a clock that was ahead count as of now and end their episode: otherwise none would be recorded
  -- until then.
  for index, at in ipairs(record.violations) do
    if too_far(at, 0) then record.violations[index], record.episode = now, 0 end
  end
  if record.cooldown - now > policy.possible then record.cooldown = 0 end
  local left = record.cooldown - now
  if left > 0 and left <= policy.possible and not forced then
    if has(flags, 8) then return { now, left, 0 } end
    -- In cooldown: nothing is charged. The limits are judged, because the client must wait for them too.
    in_cooldown, dry = left, true
  end
end

-- Records a refusal by a limit with this window. Returns the cooldown or -1, and 1 if it was a new violation.
local function record_refusal(length)
  if now >= record.episode then
    local kept = {}
    for _, at in ipairs(record.violations) do
      if at + policy.detection > now then kept[#kept + 1] = at end
    end
    if #kept >= policy.kept then table.remove(kept, 1) end
    kept[#kept + 1] = now
    record.violations, record.episode = kept, now + length
    local over = #kept - policy.threshold
    if over >= 0 and policy.levels > 0 then
      if over >= policy.levels then over = policy.levels - 1 end
      record.cooldown = now + (unpack('>I7', ARGV[2], policy.next_at + over * 7))
      if record.cooldown > record.episode then record.episode = record.cooldown end
    end
    local forgotten = now + policy.detection
    if record.cooldown > forgotten then forgotten = record.cooldown end
    local value = pack('>BI7I7', #kept, record.episode, record.cooldown)
    for _, at in ipairs(kept) do value = value .. pack('>I7', at) end
    redis.call('SET', KEYS[1], value .. ARGV[3], 'PX', floor((forgotten - now) / 1000) + 1)
    return record.cooldown > now and record.cooldown - now or -1, 1
  end
  local left = record.cooldown - now
  return left > 0 and left <= policy.possible and left or -1, 0
end

-- The limit that refused is on another shard; only the record is here.
if has(flags, 8) then
  local left, changed = record_refusal((unpack('>I7', arg, 2)))
  return { now, left, changed }
end

local charges, position, admitted = {}, 2, true
for at_key = has_penalty and 2 or 1, #KEYS do
  local c
  c, position = read_charge(position)
  c.key = KEYS[at_key]
  if c.leased and c.granted > 0 then find_lease(c) end
  judges[c.kind](c, c.key)
  if c.outcome ~= 1 and not c.shadow then admitted = false end
  charges[#charges + 1] = c
end

if not dry then
  for _, c in ipairs(charges) do
    local key = c.key
    if forced then
      if c.kind == 7 and c.unspent > 0 then
        refund_log(c, key)
        judge_log(c, key)
      elseif c.cost > 0 or c.settled then writes[c.kind](c, key, c.cost, 0) end
    else
      local taken = admitted and c.outcome == 1 and c.cost or 0
      local extra = 0
      if taken > 0 then c.remaining, c.reset = c.remaining - taken, c.charged_reset end
      if taken > 0 and c.want > 0 and c.kind ~= 7 then
        -- `want` is for the whole life of a lease. A lease that ends with its window gets the same part of it.
        c.valid = c.stop and valid_until(c.stop) or LEASE
        local usable = floor(c.want * c.valid / LEASE)
        extra = floor(c.remaining / (2 * c.nodes))
        if extra > usable then extra = usable end
      end
      if taken > 0 or c.settled or (c.healed and c.cost > 0) then
        writes[c.kind](c, key, taken, extra)
      end
      if c.leased then write_leases(c, extra) end
      c.extra = extra
      c.remaining = c.remaining - extra
    end
  end
end

local cooldown, recorded = -1, 0
if has_penalty and not dry and not admitted and not forced then
  local length = 0
  for _, c in ipairs(charges) do
    if c.violation and not c.shadow and c.cost > 0 and c.outcome == 0 then
      -- A calendar window ends at its boundary, however long such windows can be.
      local episode = c.kind == 5 and c.wait or c.length
      if episode > length then length = episode end
    end
  end
  if length > 0 then cooldown, recorded = record_refusal(length) end
end

if in_cooldown then cooldown, recorded = in_cooldown, 2 end
local answer, n = { now, cooldown, recorded }, 3
for _, c in ipairs(charges) do
  answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4] = c.outcome, c.remaining, c.wait, c.reset
  n = n + 4
  if c.leased or c.refundable then
    answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4] = c.extra or 0, c.valid or 0, c.born or 0, c.given_mark or 0
    n = n + 4
    if c.later then
      answer[n + 1], answer[n + 2] = c.given_order or 0, c.given_refunded or 0
      n = n + 2
    elseif c.leased then
      n = n + 1
      answer[n] = c.lost or 0
    end
  elseif c.refund then
    n = n + 1
    answer[n] = c.settled and 1 or 0
  end
end
return answer
