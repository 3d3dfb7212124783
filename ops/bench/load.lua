-- Load for wrk: POSTs the bodies of a file, one a line, in turn, each with the headers that its method needs.
-- The first line of the file is what a good answer contains: a 200 with it in counts as served.
-- wrk … -s load.lua URL -- BODIES METHOD
local PERCENTILES = { 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9 }
local bodies, next_one, method, expected = {}, 0, "", ""
local threads = {}
refused = 0

function setup(thread)
  thread:set("number", #threads)
  table.insert(threads, thread)
end

function init(arguments)
  for line in io.lines(arguments[1]) do
    bodies[#bodies + 1] = line
  end
  expected, method = table.remove(bodies, 1), arguments[2]
  next_one = number * 7919
end

function request()
  next_one = next_one + 1
  local line = bodies[next_one % #bodies + 1]
  local name, body = line:match("^(%S+) (.*)$")
  return wrk.format("POST", nil, {
    ["Content-Type"] = "application/json",
    ["Accept"] = "application/json, text/event-stream",
    ["MCP-Protocol-Version"] = "2026-07-28",
    ["Mcp-Method"] = method,
    ["Mcp-Name"] = name,
  }, body)
end

function response(status, headers, body)
  if status ~= 200 or not body:find(expected, 1, true) then
    refused = refused + 1
  end
end

function done(summary, latency, requests)
  local all, points = 0, {}
  for _, thread in ipairs(threads) do
    all = all + thread:get("refused")
  end
  for _, share in ipairs(PERCENTILES) do
    points[#points + 1] = string.format("[%g, %.3f]", share, latency:percentile(share) / 1e3)
  end
  local errors = summary.errors
  io.write(string.format(
    'JSON {"requests": %d, "refused": %d, "socket_errors": %d, "seconds": %.6f, "max_ms": %.3f, "percentiles": [%s]}\n',
    summary.requests, all, errors.connect + errors.read + errors.write + errors.timeout,
    summary.duration / 1e6, latency.max / 1e3, table.concat(points, ", ")))
end
