-- Steps by layers in nvim-dap with its own commands, and prints what each stop shows as JSON.
-- Arguments: the command that is the adapter, the interpreter, the program.
local adapter, python, program = unpack(arg)
local dap = require("dap")
local seconds = 90
local stops, step_back = {}, {}

local function fail(text)
  io.stderr:write(text .. "\n")
  os.exit(1)
end

local function wait(what, holds)
  if not vim.wait(seconds * 1000, holds, 10) then
    fail(("not in %d s: %s; stops so far: %s"):format(seconds, what, vim.inspect(stops)))
  end
end

dap.adapters.tensorpoint = { type = "executable", command = adapter, args = { "dap" } }
dap.listeners.after.event_capabilities.test = function(_, body)
  table.insert(step_back, body.capabilities.supportsStepBack)
end

local last
dap.listeners.before.event_stopped.test = function(session, body)
  session.current_frame = nil -- of the stop before
  last = body
end

--- Do what makes the program stop, wait until nvim-dap shows where, and note it.
local function stop_by(name, act)
  last = nil
  act()
  wait("a stop by " .. name, function()
    local session = dap.session()
    return last
      and session
      and session.stopped_thread_id == last.threadId
      and session.current_frame
      and session.threads[last.threadId].frames
  end)
  local session = dap.session()
  local thread = session.threads[last.threadId]
  table.insert(stops, {
    by = name,
    description = last.description,
    thread = thread.name,
    frame = session.current_frame.name,
    frames = #thread.frames,
    line = vim.api.nvim_win_get_cursor(0)[1],
    file = vim.fs.basename(vim.api.nvim_buf_get_name(0)),
  })
end

local function console(text)
  return function()
    dap.repl.execute(text)
  end
end

vim.cmd.edit(program)
vim.fn.search("a line three modules deep")
dap.toggle_breakpoint()
stop_by("breakpoint", function()
  dap.run({
    type = "tensorpoint",
    request = "launch",
    name = "layers",
    program = program,
    python = { python },
    console = "internalConsole",
  })
end)
dap.clear_breakpoints()
stop_by("tp step layer", console("tp step layer"))
stop_by("step_over", dap.step_over)
stop_by("step_out", dap.step_out)
stop_by("step_out", dap.step_out)
stop_by("step_over", dap.step_over)
stop_by("step_into", dap.step_into)
stop_by("step_over", dap.step_over)
stop_by("tp step line", console("tp step line"))

-- The next call is counted from its entry on: back is offered there.
dap.repl.execute("tp on layer:Net")
stop_by("continue", dap.continue)
stop_by("tp step in", console("tp step in"))
stop_by("step_over", dap.step_over)
stop_by("step_back", dap.step_back)
dap.repl.execute("tp off all")

local finished = false
dap.listeners.after.event_terminated.test = function()
  finished = true
end
dap.continue()
wait("the program's end", function()
  return finished
end)
io.stdout:write(vim.json.encode({ stops = stops, step_back = step_back }), "\n")
