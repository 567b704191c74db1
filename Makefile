# `make` alone lists what can be made.
.DEFAULT_GOAL := help
.PHONY: help demo check test test-all times lint style types pages figures site changelog package release bench conformance chaos topics matrix connectors stopwatch clean machine
# A recipe that fails leaves no half-made target behind.
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
# Exists once the environment is complete; older than pyproject.toml means out of date.
STAMP := $(VENV)/.installed
EXTRAS := spark,s3,cli,kafka

# The history the demo replays: any git repository.
REPO ?= $(CURDIR)

# Give PYTHON to choose. Each candidate is run, not looked up: a version manager's shim may exist for a
# Python that does not. If none will do, python3 says which version it is.
PYTHON ?=
CANDIDATES := $(or $(PYTHON),python3.11 python3.12 python3.13 python3)
find_python = for python in $(CANDIDATES); do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; done; \
	"$$python" -c '' 2>/dev/null || \
	{ echo "$$python does not run: install Python 3.11 or newer and run \`make PYTHON=/path/to/python3\`." >&2; exit 1; }

# What `make check` tests, in about a minute. The rest plants bugs, sweeps over every crash and every drawn history, or starts Spark.
QUICK := tests/unit tests/scenarios tests/promises

# Whose types `make check` looks at: from an empty cache in three fifths of the time that all files take, which `make lint` looks at.
QUICK_TYPES := upsertflow spark_upsert datasource sink tests/unit

# Tests run side by side, one report at the end. ARGS=-n0 runs them one after the other, as a debugger needs it.
LANES := -n 2
# One more than the cores of a small machine: a lane of Spark or of a server waits now and then for something else.
SPARK_LANES := -n 3

# Spark's workers must run the interpreter that has pyarrow and this package; their default is `python3`.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)

# Spark starts Python processes by the hundred, and each would compile the same modules anew.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: machine $(STAMP) ## replay a git history as a keyed stream: REPO=/path/to/any/checkout; VIEW=1 keeps a view of it
	@$(BIN)/python examples/git_history/$(if $(VIEW),owners,demo).py --repo "$(REPO)"

check: style ## what to run after every change, without Java: format, style, types of the packages, quick tests
	@# Types beside the tests, so that both cores have work to the end. One after the other they speak.
	@# By the checker that remembers what it has seen; `make lint` asks the other one, too, and of all files.
	@$(BIN)/mypy $(QUICK_TYPES) > $(VENV)/types.said 2>&1 & types=$$!; \
		HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-short} \
		$(BIN)/python -m pytest -q $(LANES) --dist worksteal -m 'not slow and not spark' $(QUICK) $(ARGS); tests=$$?; \
		wait $$types; types=$$?; cat $(VENV)/types.said; exit $$((types | tests))

test: machine $(STAMP) ## what must pass before a merge: each kind of test in its small form, with real Spark and real servers; ARGS='-k name' to choose
	@HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-short} \
		$(BIN)/python -m pytest $(SPARK_LANES) --dist loadfile -m 'not slow' $(ARGS)

test-all: machine $(STAMP) ## every test: all cases of each sweep, planted bugs, all servers, readers, packages, pages; ARGS='-k name' to choose
	@$(BIN)/python -m pytest $(SPARK_LANES) --dist loadfile $(ARGS)

times: ## the tests of `make test`, and where their time goes: seconds of each file
	@$(MAKE) --no-print-directory test ARGS="-p tools.test_times $(ARGS)"

lint: style types ## format, style and types

style: $(STAMP) ## format and style
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP) ## types
	@# Side by side: each keeps one core busy for longer than all the rest. One after the other they speak.
	@$(BIN)/pyright > $(VENV)/pyright.said & pyright=$$!; \
		$(BIN)/mypy; mypy=$$?; \
		wait $$pyright; pyright=$$?; cat $(VENV)/pyright.said; exit $$((mypy | pyright))

pages: $(STAMP) ## write the pages that are made from the code: docs/options.md, docs/errors.md, docs/house.md, docs/adr/README.md
	@$(BIN)/python tools/option_reference.py
	@$(BIN)/python tools/error_reference.py
	@$(BIN)/python tools/house.py
	@$(BIN)/python tools/decision_index.py

figures: $(STAMP) ## measure the code: size, imports, names, words, modules per operation
	@$(BIN)/python -m tools.code_figures

site: $(STAMP) ## the pages as a site, into .bench/site; links that lead nowhere fail it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

changelog: $(STAMP) ## what the next release will say; ARGS=--yes writes it and deletes the fragments
	@$(BIN)/towncrier build $(or $(ARGS),--draft)

package: $(STAMP) ## wheel, sdist, jar and a local Maven repository, into dist/
	@$(BIN)/python tools/package.py

release: $(STAMP) ## the package twice, and only if both builds are equal, with notes and checksums, into dist/
	@$(BIN)/python tools/release.py

bench: machine $(STAMP) ## the figures in docs, measured on this machine
	@$(BIN)/python -m pip install --quiet --group bench
	@$(BIN)/python -m benchmarks $(ARGS)

conformance: machine $(STAMP) ## what each system gets right: run all, and write docs/conformance.md; ARGS='delta_rs' for one
	@cd changelog-conformance && $(CURDIR)/$(BIN)/python -m changelog_conformance $(ARGS)

chaos: machine $(STAMP) ## live 5000 simulated worlds and 2000 histories of a schema, then kill drivers and executors of running queries
	@$(BIN)/python -m tests.simulation --seeds 5000
	@$(BIN)/python -m tests.simulation --losses 500
	@$(BIN)/python -m tests.simulation --schema-changes --seeds 2000
	@SOURCE_SEEDS=500 $(BIN)/python -m pytest -q $(LANES) tests/laws/test_source_orders.py tests/laws/test_change_feeds.py
	@UPSERTFLOW_FLOW_ROUNDS=5 $(BIN)/python -m pytest -q integration/test_mysql.py
	@PYTHON_VALUES=10000 $(BIN)/python -m pytest -q $(LANES) tests/laws/test_python_values.py
	@TYPE_NESTINGS=8 $(BIN)/python -m pytest -q $(LANES) tests/laws/test_types.py
	@$(BIN)/python integration/chaos.py $(ARGS)

topics: machine $(STAMP) ## write a thousand topics of a broker into a table each, under kills, and compare them
	@$(BIN)/python integration/topic_run.py $(ARGS)

matrix: machine $(STAMP) ## try releases of Spark, Arrow and Python, and write docs/compatibility.md
	@$(BIN)/python tools/matrix.py

stopwatch: machine package ## follow the pages of the first minutes in fresh folders, and write their times into them
	@$(BIN)/python -m tools.stopwatch $(ARGS)

connectors: $(STAMP) ## ask Maven which Kafka connector each tried Spark has, and write docs/kafka.md
	@$(BIN)/python tools/connectors.py

clean: ## remove everything that was made, the environment included
	@rm -rf $(VENV) dist .bench .servers .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Java may vanish after the environment is made, so this is asked each time.
machine:
	@$(find_python); "$$python" tools/check_machine.py --java

$(STAMP): pyproject.toml
	@$(find_python); "$$python" tools/check_machine.py && \
		echo "making $(VENV) with $$python" && "$$python" -m venv $(VENV)
	@# The pip that comes with Python 3.11 does not know dependency groups.
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]' --group dev
	@$(BIN)/python tools/check_machine.py --installed
	@touch $@
