"""The resident process: an interpreter that has torch imported already and forks to run a program.

`client` is what the front ends use. It asks the `host` (one per user and installation), which knows
the `zygotes` it has started, one for each `key`; `forking` is what runs in those. A program's
process is made thus:

    front end ──Ask──► host: where is a zygote for this interpreter, these variables?
    front end ──starts──► stub, in place of `python` ──Request, files──► zygote ──fork──► program
"""
