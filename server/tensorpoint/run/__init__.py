"""`tensorpoint run`: the adapter without an editor, for terminals, clusters and CI.

`options` is what is asked and how it went, `program` the run itself, `facts` the file that it
leaves, `signals` what passes between the terminal and the program.
"""

from .facts import prepare_facts
from .options import Arming, Options, Outcome, Program, Reported, RunError, arm, find_python
from .program import run

__all__ = [
    "Arming",
    "Options",
    "Outcome",
    "Program",
    "Reported",
    "RunError",
    "arm",
    "find_python",
    "prepare_facts",
    "run",
]
