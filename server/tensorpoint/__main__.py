"""`python -m tensorpoint`."""

import os
import sys

# `-m` puts the working directory first: a random.py in it would be imported by our dependencies.
if sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

from tensorpoint.cli import main

if __name__ == "__main__":
    sys.exit(main())
