# Everything here needs only Python >= 3.11 and git; it makes its own virtual environment in .venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PORT   ?= 8080
MODEL  ?= edge-tiny
BUNDLE := .cache/$(notdir $(MODEL)).bundle
.DEFAULT_GOAL := help

.PHONY: help serve test types parity bench agents clean

help:            ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

# TensorRT's Python package and its stubs, read by tests and not installed: its library needs a GPU. Without network they skip.
TENSORRT := .cache/tensorrt/.downloaded
$(TENSORRT): $(VENV)/.installed
	mkdir -p $(@D)
	for wheel in tensorrt-stubs==10.13.0.35.1 $(addprefix tensorrt-cu13-bindings==,10.13.3.9 10.16.1.11 11.4.0.106); do \
	  $(BIN)/python -m pip download --quiet --no-deps --platform manylinux_2_28_x86_64 --python-version 311 \
	    --dest $(@D) $$wheel || { echo 'tests of TensorRT plugins and stubs will skip'; exit 0; }; \
	done; touch $@

$(BUNDLE)/manifest.json: $(VENV)/.installed $(wildcard edgellm/models/$(MODEL)/* edgellm/engine/*.py edgellm/graph/*.py edgellm/graph/*/*.py)
	mkdir -p $(dir $(BUNDLE))
	$(BIN)/edgellm build $(MODEL) --out $(BUNDLE) --force

serve: $(BUNDLE)/manifest.json  ## install, build the embedded bundle, serve it
	$(BIN)/edgellm serve $(BUNDLE) --port $(PORT)

test: $(VENV)/.installed $(TENSORRT)  ## lint, types and all tests that need no torch
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory types
	$(BIN)/python -m pytest -n auto -m "not parity"

# mypy does not follow the package-dir mapping of pyproject.toml, so it gets one tree of links that looks installed.
types: $(VENV)/.installed  ## mypy --strict on the library and the folders installed beside it
	rm -rf .cache/types && mkdir -p .cache/types/edgellm
	ln -s $(CURDIR)/edgellm/* .cache/types/edgellm/
	ln -s $(CURDIR)/server $(CURDIR)/kernels $(CURDIR)/engines $(CURDIR)/mlperf $(CURDIR)/jetson .cache/types/edgellm/
	cd .cache/types && MYPYPATH=. $(abspath $(BIN))/mypy --config-file $(CURDIR)/pyproject.toml -p edgellm

parity: $(VENV)/.installed  ## recompute the references with torch, transformers and ModelOpt
	$(BIN)/python -m pip install --quiet --editable '.[dev,parity,quantize]'
	$(BIN)/python -m pytest -m parity tests/parity

bench: $(VENV)/.installed  ## speed of the mid preset on this machine
	$(BIN)/edgellm bench --preset mid --precision int8
	$(BIN)/edgellm bench --preset mid --precision int4

agents: $(VENV)/.installed  ## real coding agents do a task against the server (needs npm)
	cd tests && $(abspath $(BIN))/python -m agents.run

clean:           ## remove the virtual environment and built bundles
	rm -rf $(VENV) .cache build
