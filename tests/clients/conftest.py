"""Clients that are not ours drive the adapter; pytest starts them."""

collect_ignore = ["node_modules"]
