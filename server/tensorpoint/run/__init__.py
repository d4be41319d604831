"""`tensorpoint run`: the adapter without an editor, for terminals, clusters and CI.

`command` is the command line, `options` what is asked and how it went, `program` the run itself,
`sessions` how a debugged process is begun with, `launcher` what gives the program our streams,
`facts` the file that it leaves, `signals` what passes between the terminal and the program.
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
