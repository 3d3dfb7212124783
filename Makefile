# One word from a clone to a running, proven system. Needs Python 3.11 or newer and make, nothing else.

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
LINK  := $(VENV)/links/outlast
BENCH := $(VENV)/.bench
TREE  := __init__.py domain adapters delivery service examples ops tests

# What to hand on, such as `make test ARGS="tests/domain -x"`.
ARGS =
# How many test files run at once.
AT_ONCE = 3

.DEFAULT_GOAL := help
.PHONY: help demo test check fuzz conformance bench bench-delivery bench-webhooks bench-gateway bench-audit docs screenshots clean

help: ## list these words
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## start everything and watch one task run, live
	$(BIN)/outlast demo $(ARGS)

# Most tests wait for other processes, so a few files at once cost little; each has its own PostgreSQL.
# Those that measure time run alone, before the others. Exit code 5: ARGS chose none of them.
test: $(STAMP) ## the whole suite, with a real PostgreSQL
	$(BIN)/pytest -q -m alone $(ARGS) || [ $$? -eq 5 ]
	$(BIN)/pytest -m "not alone" -n $(AT_ONCE) --dist loadfile $(ARGS)

check: $(STAMP) $(LINK) ## lint, format, types, layers, hygiene
	$(BIN)/ruff check $(TREE)
	$(BIN)/ruff format --check $(TREE)
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --warnings
	$(BIN)/pytest -q tests/test_layers.py tests/test_hygiene.py

# Another seed each time, unless one is named: the same seed makes the same inputs again.
fuzz: $(STAMP) ## 100,000 generated inputs; OUTLAST_FUZZ_RUNS and OUTLAST_FUZZ_SEED say otherwise
	OUTLAST_FUZZ_RUNS=$${OUTLAST_FUZZ_RUNS:-100000} OUTLAST_FUZZ_SEED=$${OUTLAST_FUZZ_SEED:-$$(date +%s)} \
	  $(BIN)/pytest -q -s tests/fuzz $(ARGS)

conformance: $(STAMP) ## the official conformance suite against a running Outlast
	$(BIN)/python tests/conformance/suite.py $(ARGS)

bench: $(STAMP) $(BENCH) ## ours beside what people would use instead, into docs/performance.md
	$(BIN)/python ops/bench/compare.py $(ARGS)

bench-delivery: $(STAMP) ## how fast a change is delivered, and what idle streams cost
	$(BIN)/python ops/bench/delivery.py $(ARGS)

bench-webhooks: $(STAMP) ## how fast signed webhooks leave, and what a backlog costs
	$(BIN)/python ops/bench/webhooks.py $(ARGS)

bench-gateway: $(STAMP) ## what a call costs through Outlast, against its server alone
	$(BIN)/python ops/bench/gateway.py $(ARGS)

bench-audit: $(STAMP) ## how fast a log is verified, and views are made anew from it
	$(BIN)/python ops/bench/audit.py $(ARGS)

docs: $(STAMP) ## docs/configuration.md anew, from the code that reads the settings
	$(BIN)/python ops/reference/configuration.py $(ARGS)

screenshots: $(STAMP) ## each page of the console, both themes and widths, into docs/images/
	$(BIN)/python tests/browser/screenshots.py $(ARGS)

# `.outlast` holds tasks and is nobody's rubbish: remove it by hand.
clean: ## remove what these targets made; keeps ./.outlast, where tasks are stored
	rm -rf $(VENV) .node build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find $(TREE) -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml
	@set -e; \
	if [ ! -x $(BIN)/python ]; then \
	  for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	    if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	    then found=$$python; break; fi; \
	  done; \
	  if [ -z "$${found:-}" ]; then \
	    echo "Outlast needs Python 3.11 or newer with its venv module, and found none." >&2; \
	    echo "Install one, or name it: make PYTHON=/path/to/python3.12" >&2; \
	    exit 1; \
	  fi; \
	  "$$found" -m venv $(VENV); \
	fi
	$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[embedded,test,check]'
	@touch $@

$(BENCH): $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[embedded,test,bench]'
	@touch $@

# A relative link: a clone that is moved keeps it. The checker follows `outlast.…` through it.
$(LINK):
	@mkdir -p $(@D)
	@ln -sfn ../.. $@
