# `make run` and `make test` need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The release that the figures were taken with; TORCH=torch takes the newest.
TORCH ?= torch==2.13.0
RESULTS ?= benchmarks/results
BENCHMARKS := compare fused_step figure_two exact_sums matrix_rate fast_sums sphere_maps scaling startup \
	dask_scaling transport libraries jko_step clustering_grid continuous_networks rwpo control adjoint meanfield \
	digests token_files

.PHONY: run test test-long test-versions lint bench bench-again benchmarks docs docs-fast docs-check newcomer clean

run: $(VENV)/.installed
	@echo "make run: 64 Ornstein-Uhlenbeck heads, 8 paths; after a first compilation about a minute on two cores"
	$(BIN)/python studies/ou_heads.py --heads 64 --paths 8 --out results/first-look --overwrite

# Before them all kernels are compiled, which takes minutes in a fresh clone.
test: $(VENV)/.installed-test
	@echo "make test 1/2: kernels are compiled, in a fresh clone about 3 minutes on two cores, else seconds"
	$(BIN)/python tests/precompile.py
	@echo "make test 2/2: the tests run, about 9 minutes on two cores"
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

# The tests of many cases, with all of them, and slow ones.
test-long: $(VENV)/.installed-test
	@echo "make test-long: all cases of every test, about 12 minutes on two cores"
	$(BIN)/python -m pytest --long --numprocesses 2 --dist worksteal

# Compiled code with the oldest and the newest Numba, and with other Pythons that are found.
test-versions:
	$(PYTHON) tests/versions.py

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/public_names.py

# Some two hours on two cores. Libraries of the extra that are missing are reported as such.
bench: benchmarks
	$(BIN)/python benchmarks/performance.py

# All benchmarks again, and which medians lie outside the spread of the run before.
bench-again:
	$(MAKE) benchmarks RESULTS=build/bench
	-$(BIN)/python benchmarks/performance.py --check benchmarks/results build/bench
	$(BIN)/python benchmarks/performance.py

benchmarks: $(VENV)/.installed-bench
	for name in $(BENCHMARKS); do \
	  $(BIN)/python benchmarks/$$name.py --json $(RESULTS)/$$name.json || exit 1; \
	done
	if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2> /dev/null; then \
	  $(BIN)/python benchmarks/gpu_particles.py --json $(RESULTS)/gpu_particles.json; \
	fi

# The site in build/site, with every example of the gallery run: some minutes. Warnings are errors.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -b html -W --keep-going docs build/site

# The same without running the examples.
docs-fast: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -b html -W --keep-going -D plot_gallery=0 docs build/site

# The built site: names that the search must find, and its pages in Chromium where that is installed.
docs-check: $(VENV)/.installed-docs
	$(BIN)/python -m pip install --quiet 'selenium>=4.20'
	$(BIN)/python tests/docs/site.py build/site

# Wheel and sdist in dist/, and what a newcomer does with them in an empty environment.
newcomer: $(VENV)/.installed-test $(VENV)/.installed-docs
	PYTHON=$(abspath $(BIN))/python .ci/newcomer

$(VENV)/.installed: pyproject.toml
	@echo "wflow is installed into $(VENV), about a minute"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "what the tests need is installed, torch among it, some minutes"
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	$(BIN)/python -m pip install --quiet '$(TORCH)' || echo 'no $(TORCH) here: its tests are skipped'
	$(BIN)/python -c 'import torch' && $(BIN)/python -m pip install --quiet --editable '.[metrics]' \
	  || echo 'the extra `metrics` cannot be installed: its tests are skipped'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	$(BIN)/python -m pip install --quiet '$(TORCH)' || echo 'no $(TORCH) here: no API pages of wflow.nets'
	touch $@

$(VENV)/.installed-bench: $(VENV)/.installed-test
	$(BIN)/python -c 'import torch' && $(BIN)/python -m pip install --quiet --editable '.[bench]' \
	  || echo 'some libraries of the extra `bench` cannot be installed: the tables say which'
	touch $@

clean:
	rm -rf $(VENV) build dist docs/api docs/gallery *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
