"""`python -m tensorpoint` and the console script."""

import os
import sys

# `-m` puts the working directory first: a random.py in it would be imported by our dependencies.
if sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

from tensorpoint.resident.handover import hand_over


def main() -> int:
    """Run the command line; returns the exit status."""
    hand_over(sys.argv[1:])
    from tensorpoint.cli import main as run  # only now: it imports argparse and more, 20 ms

    return run()


if __name__ == "__main__":
    sys.exit(main())
