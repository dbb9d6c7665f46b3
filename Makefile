# Everything that a developer runs by name. Nothing here is needed to use servesim.
PYTHON ?= python3
TOOLS := .cache/tools
PINS := $(shell sed -n 's/^dev = \[\(.*\)\]/\1/p' pyproject.toml | tr -d '",')

.PHONY: help check lint type test smoke real-server bench golden outputs validate e2e dist fuzz clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 12

check: lint type test ## lint, types and tests

$(TOOLS)/pins: pyproject.toml
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check $(PINS)
	@echo "$(PINS)" > $@

lint: $(TOOLS)/pins ## ruff: lint and format
	$(TOOLS)/bin/ruff check .
	$(TOOLS)/bin/ruff format --check .

type: $(TOOLS)/pins ## mypy --strict
	$(TOOLS)/bin/mypy --strict servesim

test: ## the tests, over all cores (SERVESIM_TESTS=full: what they leave to .ci/run, too)
	$(PYTHON) -m tests

smoke: ## loadgen against a real llama.cpp server (the first time it is built: ten minutes)
	$(PYTHON) -m tests.smoke $(if $(THREADS),--threads $(THREADS))

real-server: ## calibrate on a real llama.cpp server, predict what was not fitted (a quiet machine; THREADS=1, WRITE=1)
	$(PYTHON) -m tests.real_server $(if $(THREADS),--threads $(THREADS)) $(if $(WRITE),--write)

validate: ## rerun the evidence for the cost models into the tables of the guide evidence (SERVESIM_DATA=FOLDER; ten minutes)
	$(PYTHON) -m tests.page_evidence

bench: ## speed of the simulator, truth and cost of the load generator, beside their targets (QUICK=1: a minute; WRITE=1)
	$(PYTHON) -m tests.bench $(if $(QUICK),--quick) $(if $(WRITE),--write)
	$(PYTHON) -m tests.bench_client

e2e: ## the live page in a headless Chromium (Debian's, installed if it is missing); screenshots in .cache/e2e
	command -v chromium || { apt-get update && apt-get install --yes --no-install-recommends chromium chromium-driver; }
	SERVESIM_E2E_SHOTS=.cache/e2e $(PYTHON) -m unittest -v tests.test_e2e_page

golden: ## rewrite what the README and the guides show, and the golden pictures; read the diff
	$(PYTHON) -m tests.page_tables
	$(PYTHON) -m tests.page_commands
	$(PYTHON) -m tests.report_runs

outputs: ## rewrite what the runbook and the prompt show; read the diff, mend the figures that it names
	$(PYTHON) -m tests.write_outputs

dist: ## the wheel and the sdist, the same bytes twice, installed and tried in a clean environment
	$(PYTHON) -m tests.dist --twice --install $(PYTHON)

fuzz: ## a few minutes of wrong, huge and hostile input (SECONDS=180 SEED=0: how long, and from where)
	$(PYTHON) -m tests.fuzz --seconds $(or $(SECONDS),180) --seed $(or $(SEED),0)

clean: ## remove what can be made again (keeps .cache)
	rm -rf build dist *.egg-info .ruff_cache .mypy_cache
	find servesim tests fixtures -name __pycache__ -type d -prune -exec rm -rf {} +
