PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all dist lint bench bench-peers results docs doctest clean

$(VENV)/installed: pyproject.toml setup.py dpppl/randomness/native.c
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@

demo: $(VENV)/installed
	$(BIN)/python examples/demo.py

test: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not numerical"

# `python -m pytest --all` also runs every case of tests that are marked as thinned
test-all: test
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not numerical"
	$(BIN)/python -m pytest -n 2 --dist worksteal examples/tests
	DPPPL_TESTS=numerical $(BIN)/python -m pytest -n 2 --dist worksteal -m numerical tests

dist: $(VENV)/installed
	$(BIN)/pip install --quiet build
	$(BIN)/python -m build

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/installed
	$(BIN)/python benchmarks/speed/speed.py
	$(BIN)/python benchmarks/accuracy/adult.py --kernels DPSGLD DPSGHMC DPSGNHT
	$(BIN)/python benchmarks/calibration/posteriors.py
	$(BIN)/python benchmarks/calibration/coverage.py

bench-peers: $(VENV)/installed
	$(BIN)/python benchmarks/speed/peers.py
	$(BIN)/python benchmarks/speed/peers.py --growth

# runs that docs/results holds already are kept
results: $(VENV)/installed
	$(BIN)/python examples/heteroscedastic.py
	$(BIN)/python examples/abalone.py
	$(BIN)/python examples/adult.py
	$(BIN)/python examples/mnist.py
	$(BIN)/python examples/pate_students.py
	$(BIN)/python examples/papers/bayesian_privacy.py --out docs/results
	$(BIN)/python examples/results.py

docs: $(VENV)/installed
	$(BIN)/pip install --quiet --editable ".[docs]"
	$(BIN)/python -m sphinx -W --keep-going --quiet -b html docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html

doctest: $(VENV)/installed
	$(BIN)/python -m pytest --doctest-glob="*.md" README.md CONTRIBUTING.md docs

clean:
	rm -rf $(VENV) build docs/_build dpppl/*.so *.egg-info .pytest_cache .ruff_cache .mypy_cache
