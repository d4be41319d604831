"""What runs in the user's interpreter: runs `forward` on the meta device and fits what it sees.

Loaded by file location under a private name, with the standard library and torch only. The way of
the data: `source` (text to lazy module) → `targets` (what can be called, with which inputs) →
`probing` (runs at several sizes, by `running` and `recorder`) → `fitting` (sizes to expressions) →
`hints`; `faults` tries the borders, `symbolic` asks FX. `main` is called with a request.
"""
