"""What runs in the program's interpreter: waits, forks, and is the program.

Loaded by file location under a private name, with the standard library only: `zygote` (the loop),
`child` (makes the fork look like a fresh process), `program` (runs what `python` would), `link`
(what stub and zygote say), `command` and `environment` (what a zygote can stand for; the host
uses these two as well), `stub` (the executable in front, on its own).
"""
