#!/usr/bin/env bash
# Set up what the editor tests drive: code-server (the real VS Code workbench), a browser, the test
# runner. Everything but the browser goes to .editor/ and node_modules/, which git ignores; what is
# there already is kept.
#
# Exit status 3: apt or npm can't be used here. The last line of standard error says why.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
root=$(cd ../.. && pwd)

code_server=4.139.1
cache=$root/.editor
npm=("$root/vscode-client/npm.sh")

unusable() {
    echo "$*" >&2
    exit 3
}

# Three attempts: a registry may be slow for a moment.
network() {
    local attempt
    for attempt in 1 2 3; do
        "$@" >"$cache/setup.log" 2>&1 && return 0
        sleep $((attempt * 2))
    done
    tail -n 20 "$cache/setup.log" >&2
    return 1
}

# Whether one of these is newer than the file, which may not be there.
outdated() {
    local file=$1
    shift
    [[ ! -e $file || -n $(find "$@" -newer "$file" -not -path '*__pycache__*' -print -quit) ]]
}

mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9 # test workers of one machine share the folder

if ! command -v chromium >/dev/null; then
    command -v apt-get >/dev/null || unusable "chromium is not installed and there is no apt-get to install it"
    [[ $(id -u) == 0 ]] || unusable "chromium is not installed: apt-get install chromium fonts-dejavu-core"
    export DEBIAN_FRONTEND=noninteractive
    network apt-get update -qq || unusable "chromium is not installed and apt-get update fails"
    network apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core \
        || unusable "chromium is not installed and apt-get can't install it"
fi

server=$cache/code-server-$code_server
if [[ ! -e $server/.ready ]]; then
    rm -rf "$server"
    mkdir -p "$server"
    echo '{"private": true}' >"$server/package.json"
    # Without scripts: nothing is compiled, and what it needs comes prebuilt.
    network "${npm[@]}" --prefix "$server" install --ignore-scripts "code-server@$code_server" \
        || unusable "npm can't install code-server $code_server"
    vscode=$server/node_modules/code-server/lib/vscode
    # Not `npm ci`: the published lock file does not match its package.json.
    (cd "$vscode" && network "${npm[@]}" install --omit=dev --ignore-scripts) \
        || unusable "npm can't install what code-server needs"
    ln -sf code-linux.sh "$vscode/bin/remote-cli/code-server"
    ln -sf browser-linux.sh "$vscode/bin/helpers/browser.sh"
    # 400 MB that no test needs.
    (cd "$vscode/node_modules" && rm -rf @github/copilot-sdk-linux-* @microsoft/mxc-sdk/bin \
        node-pty/prebuilds/{win32,darwin}-* node-pty/{third_party,deps})
    find "$vscode/extensions" -mindepth 1 -maxdepth 1 -type d \
        ! -name python ! -name 'theme-*' ! -name git-base ! -name configuration-editing \
        ! -name json ! -name 'markdown-*' -exec rm -rf {} +
    touch "$server/.ready"
fi

ready=({vscode-client,tests/editor}/node_modules/.ready)
network make --no-print-directory -s -C "$root" "${ready[@]}" \
    || unusable "npm can't install the test runner and the extension's tools"

# The extension, with the wheel of this checkout in it, and the small ones that the scenarios use.
client=$root/vscode-client
vsce=$client/node_modules/@vscode/vsce/vsce
if outdated "$cache/tensorpoint.vsix" "$root"/{server,adapters,pyproject.toml} "$client"/{src,web,media,*.json,*.mjs}; then
    rm -rf "$cache/wheel"
    network "$root/.venv/bin/python" -m build --wheel --outdir "$cache/wheel" "$root" \
        || unusable "the wheel can't be built: pip finds no build back end"
    (cd "$client" && "${npm[@]}" --node package.mjs "$cache"/wheel/*.whl "$cache/tensorpoint.vsix" \
        >"$cache/setup.log" 2>&1) || {
        cat "$cache/setup.log" >&2
        exit 1
    }
fi
for name in trace python debugpy; do
    if outdated "$cache/$name.vsix" "extensions/$name"; then
        (cd "extensions/$name" && "${npm[@]}" --node "$vsce" package --no-dependencies --skip-license \
            --allow-missing-repository --out "$cache/$name.vsix" >"$cache/setup.log" 2>&1) || {
            cat "$cache/setup.log" >&2
            exit 1
        }
    fi
done
