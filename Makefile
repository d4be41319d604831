# Every target sets itself up: the first one run makes .venv, with the versions in constraints.txt.
#
#   make PYTHON=python3.12    another interpreter (3.11 or newer)
#   make test TESTFLAGS="-n 2 -k nonfinite"

PYTHON ?= python3
# Tests wait for processes more than they compute: three workers use 70 % of two cores. The order of
# the groups is that of tests/conftest.py.
TESTFLAGS ?= -n 4 --dist loadgroup --no-loadscope-reorder $(RETRIES)
# Of thousands of tests of real processes, one may lose a race on a busy machine. A few may have a
# second try, and are printed with what they said first: each is a fault to mend. (Playwright tries
# the editor's scenarios again.)
RETRIES := --reruns 1 --max-suite-reruns 4 --rerun-show-tracebacks \
    --rerun-exclude-path tests/unit --rerun-exclude-path tests/editor
BENCHFLAGS ?=
SWEEPFLAGS ?=

BIN := .venv/bin
READY := .venv/.ready
CLIENT := vscode-client
CLIENT_READY := $(addsuffix /node_modules/.ready,$(CLIENT) tests/editor tests/clients)
NPM := $(CLIENT)/npm.sh --prefix $(CLIENT)
# Where the npm registry can't be reached there is nothing to check the extension with.
with_npm = if $(MAKE) --no-print-directory -s $(CLIENT_READY); then $(NPM) $(1); \
    else echo "skipped: npm $(1), since npm can't install what it needs (above)" >&2; fi
IN_DEBUGGEE := $(addprefix server/tensorpoint/,agent conditions resident/forking shapes/tracing wire) adapters

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench sweep dist vsix images clean
.DELETE_ON_ERROR:

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

demo: $(READY)  ## train a small GPT-2 with a planted NaN and stop on it
	$(BIN)/tensorpoint demo

test: $(READY)  ## run the tests
	$(BIN)/python -m pytest $(TESTFLAGS)
	@$(call with_npm,test)

lint: export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1
lint: $(READY)  ## style, format, types, import floors
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports
	@$(call with_npm,run lint)
	@# In the debuggee the package has another name, so these rooms import relatively.
	@! grep -rnE '^ *(from|import) tensorpoint(_adapters)?\b' --include='*.py' $(IN_DEBUGGEE) || { \
	    echo "error: import relatively there" >&2; exit 1; }

format: $(READY)  ## apply what lint asks for, where ruff can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(READY)  ## measure latency and overhead (BENCHFLAGS="--json FILE")
	$(BIN)/python tests/bench $(BENCHFLAGS)

sweep: $(READY)  ## compare shapes with real runs of the architectures of transformers
	$(BIN)/python tests/bench/sweep.py $(SWEEPFLAGS)

dist: $(READY)  ## build wheel and sdist into dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist

vsix: dist $(CLIENT_READY)  ## build the VS Code extension into vscode-client/
	$(NPM) run package

images: $(READY)  ## make the screenshots of the documentation
	$(BIN)/python -m pytest tests/editor -k 'nonfinite or gradient or layers or shapes'
	$(BIN)/python tests/editor/figures.py

clean:  ## remove what was built and cached; .venv stays
	rm -rf dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	rm -rf $(CLIENT)/dist $(CLIENT)/*.vsix
	find server adapters tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian packs `venv` on its own: without it the first attempt fails half way.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "error: set-up needs Python 3.11 or newer, tried '$(PYTHON)'. Name one: make PYTHON=python3.12" >&2; \
	    exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv || { \
	    [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	    && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv \
	    && $(PYTHON) -m venv --clear .venv; } || { \
	    echo "error: '$(PYTHON) -m venv' does not work. On Debian and Ubuntu: apt-get install python3-venv" >&2; \
	    exit 1; }
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[demo,test,dev]'
	@touch $@

# Node.js comes with .venv, as a wheel. No package runs scripts when it is installed (.npmrc).
%/node_modules/.ready: %/package-lock.json | $(READY)
	$(CLIENT)/npm.sh --prefix $* ci
	@touch $@
