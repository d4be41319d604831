"""What runs inside the debugged process: the hooks, the watches and the stop.

Standard library only, plus the torch that the program itself imports; it is loaded by file
location under the private name `_tensorpoint` (see `bootstrap`), so that the program's `sys.path`
and the names it can import stay as they are.

Data flows one way: the adapter's plan arrives in `session`, which arms `hooks`; a hook hands a
module's output to a watch in `watches`; a watch that finds something asks `stop` to suspend the
thread; `debugger` is the only module that knows pydevd.
"""
