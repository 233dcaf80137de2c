-- The cheapest script that is still a token bucket on the server's clock and says how much is left and for how long:
-- a float that drifts, nothing rounded, no change of limits, no clock that went back, no second limit.
local rate, capacity = struct.unpack('dd', ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local value = redis.call('GET', KEYS[1])
local tokens = capacity
if value then
  local at
  tokens, at = struct.unpack('dd', value)
  tokens = tokens + (now - at) * rate
  if tokens > capacity then tokens = capacity end
end
if tokens < 1 then return { 0, 0, (1 - tokens) / rate } end
tokens = tokens - 1
local reset = (capacity - tokens) / rate
redis.call('SET', KEYS[1], struct.pack('dd', tokens, now), 'PX', math.ceil(reset / 1000))
return { 1, tokens, reset }
