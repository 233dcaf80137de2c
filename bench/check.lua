-- POSTs checks for 10,000 clients: wrk … -s check.lua URL -- SHAPE [FILE]
--
-- Every request is built once, before the clock starts, so that the generator's core is not the bottleneck.
-- `tollgate_million` has a million clients instead. SHAPE says whose protocol to speak; the clients and their order are the same for all. `keys` asks for the API keys in FILE, one
-- on each line, over and over if they are fewer than clients.

local CLIENTS = 10000
local STRIDE = 7919 -- coprime with CLIENTS: visits each client once per lap, in no neighbourly order

local shapes = {
  tollgate = function(id)
    local body = string.format('{"user_id":"user-%05d","endpoint":"/api/v1/items"}', id)
    return wrk.format("POST", "/v1/rate-limit/check", { ["Content-Type"] = "application/json" }, body)
  end,
  throttlecrab = function(id)
    local body = string.format(
      '{"key":"user-%05d:/api/v1/items","max_burst":1000000,"count_per_period":1000000,"period":60,"quantity":1}', id)
    return wrk.format("POST", "/throttle", { ["Content-Type"] = "application/json" }, body)
  end,
  nginx = function(id)
    local user = string.format("user-%05d", id)
    local body = string.format('{"user_id":"%s","endpoint":"/api/v1/items"}', user)
    local headers = { ["Content-Type"] = "application/json", ["X-User-Id"] = user }
    return wrk.format("POST", "/v1/rate-limit/check", headers, body)
  end,
}

shapes.get = function() return wrk.format("GET", "/items") end

local keys = {}

shapes.keys = function(id)
  local body = string.format('{"api_key":"%s","endpoint":"/api/v1/items"}', keys[id % #keys + 1])
  return wrk.format("POST", "/v1/rate-limit/check", { ["Content-Type"] = "application/json" }, body)
end

local MILLION = 1000000
local MILLION_STRIDE = 618033 -- coprime with MILLION

local requests, at, builds = {}, 0, false

function init(args)
  if args[2] then
    for key in io.lines(args[2]) do keys[#keys + 1] = key end
  end
  -- A million requests do not fit into the generator: each is built when it is sent.
  builds = args[1] == "tollgate_million"
  if builds then return end
  local shape = shapes[args[1]] or error("unknown shape: " .. tostring(args[1]))
  for id = 0, CLIENTS - 1 do requests[id] = shape(id) end
end

function request()
  if builds then
    at = (at + MILLION_STRIDE) % MILLION
    return shapes.tollgate(at)
  end
  at = (at + STRIDE) % CLIENTS
  return requests[at]
end

-- One line for the driver; wrk's own report is for people.
function done(summary, latency)
  local errors = summary.errors
  print(string.format("RESULT requests=%d duration_us=%d p50_us=%d p99_us=%d failed=%d",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
