"""A command line of `python`, as far as a fork of a running interpreter can carry it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

#: Options without an argument that a zygote is started with, since they can't be changed later.
_SWITCHES = frozenset("bBdEIOPsS")
#: Options that are about the run alone: `program` and `child` see to them.
_OF_THE_RUN = frozenset("uq")


@dataclass(frozen=True)
class Command:
    """What is to be run, and the options of the interpreter in an order that doesn't matter."""

    kind: Literal["file", "module", "code"]
    target: str
    args: tuple[str, ...]
    #: The interpreter's options that its start depends on: the zygote must have the same.
    flags: tuple[str, ...] = ()
    unbuffered: bool = False
    #: `-X` options as given; those that matter are in `flags` as well.
    xoptions: tuple[str, ...] = ()


def parse(argv: Sequence[str]) -> Command | None:
    """The command of `python ARGV...`; None for what only a fresh interpreter can do.

    That is: reading the program from stdin, the prompt, and options such as `-i`, `-v` or `-x`.
    """
    flags: list[str] = []
    xoptions: list[str] = []
    unbuffered = False
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "-" or word.startswith("--") or not word:
            return None
        if not word.startswith("-"):
            return Command("file", word, tuple(words), _sorted(flags), unbuffered, tuple(xoptions))
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in _SWITCHES:
                flags.append(f"-{letter}")
            elif letter in _OF_THE_RUN:
                unbuffered = unbuffered or letter == "u"
            elif letter in "XWmc":
                if not letters and not words:
                    return None
                value, letters = letters or words.pop(0), ""
                if letter in "mc":
                    kind: Literal["module", "code"] = "module" if letter == "m" else "code"
                    return Command(
                        kind, value, tuple(words), _sorted(flags), unbuffered, tuple(xoptions)
                    )
                if letter == "X":
                    xoptions.append(value)
                if not value.startswith("frozen_modules"):
                    # A debugger asks for it, so that one can step into the standard library; a
                    # zygote has it always, and programs differ in nothing but sys._xoptions.
                    flags.append(f"-{letter}{value}")
            else:
                return None
    return None


def _sorted(flags: list[str]) -> tuple[str, ...]:
    """-W in the order given, of which the last one wins; of the others each once, but -O and -b."""
    warnings = [flag for flag in flags if flag.startswith("-W")]
    others = [flag for flag in flags if not flag.startswith("-W")]
    repeated = {"-O", "-b"}
    counted = sorted(flag for flag in others if flag in repeated)
    return (*sorted({*others} - repeated), *counted, *warnings)
