"""The debug adapter: a proxy in front of debugpy's that adds tensorpoints.

One idea a file: `framing` (bytes), `peer` (sequence numbers of one side), `upstream` (debugpy's
adapter), `relay` (the two streams), `session` (who answers what), `launch`, `env_file`,
`breakpoints`, `console`, `stops`, `children`, `injection` (the agent), `server` (stdio and TCP).
"""
