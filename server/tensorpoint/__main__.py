"""`python -m tensorpoint`."""

import sys

from tensorpoint.cli import main

if __name__ == "__main__":
    sys.exit(main())
