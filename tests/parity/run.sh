#!/bin/sh
# debugpy's own tests through `tensorpoint dap`: run.sh DEBUGPY_CHECKOUT [PYTEST_ARGUMENTS]
#
#   PYTHON   interpreter with tensorpoint and what the tests need (default: python)
#   ADAPTER  command of the adapter; empty for debugpy's own (default: tensorpoint dap)
#   WORKERS  tests at a time (default: 3)
#   TESTS    files or tests, as named in the checkout (default: tests/debugpy/test_*.py)
set -eu

here=$(cd "$(dirname "$0")" && pwd)
checkout=${1:?usage: run.sh DEBUGPY_CHECKOUT [PYTEST_ARGUMENTS]}
shift
python=$(command -v "${PYTHON:-python}")
adapter=${ADAPTER-$python -m tensorpoint dap}

cd "$checkout"
export DEBUGPY_TEST=1 PYTHONPATH="$here"
unset PYTHONDONTWRITEBYTECODE  # the tests compare the interpreter's flags
# addopts: the checkout's own would start eight workers.
exec "$python" -X frozen_modules=off -m pytest -p tensorpoint_parity --adapter "$adapter" \
    -o addopts= -p no:cacheprovider -n "${WORKERS:-3}" "$@" ${TESTS:-tests/debugpy/test_*.py}
