"""Shapes before the program runs: asks a tracer in the user's interpreter for the table of a file.

`tracing/` is what runs there, `entry/` the door to it; `calling` and `show` run in our own process.
"""

from .calling import environment_of as environment_of
from .calling import trace as trace
