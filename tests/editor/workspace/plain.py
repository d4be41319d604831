"""Needs nothing; says what it was started with."""

import os
import sys

print("interpreter", sys.executable, flush=True)
print("debugged", "pydevd" in sys.modules, flush=True)
print("from .env", os.environ.get("FROM_ENV_FILE"), flush=True)
print("end of plain.py")  # last
