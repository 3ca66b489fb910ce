# make train | test | lint | clean. Options: PYTHON=python3.12, ARGS="--epochs 2".

PYTHON ?= python3
VENV := .venv
ARGS ?=
SHELL := /bin/bash

# While it exists the set-up is unfinished: an interrupted one starts again from nothing.
UNFINISHED := $(VENV)/.unfinished
RUN_READY := $(VENV)/.ready-run
DEV_READY := $(VENV)/.ready-dev
PIP := $(VENV)/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.PHONY: train test lint clean
.DELETE_ON_ERROR:
# Both set-ups write to the same environment.
.NOTPARALLEL:

train: $(RUN_READY)
	$(VENV)/bin/python train.py --quantizer ddcl $(ARGS)

test: $(DEV_READY)
	$(VENV)/bin/python -m pytest --numprocesses auto --maxprocesses 4 $(ARGS)

lint: $(DEV_READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find vqlab tests -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call set-up,EXTRAS)
define set-up
	@echo "setting up $(VENV) (a few minutes the first time)"
	@if [ -e $(UNFINISHED) ]; then rm -rf $(VENV); fi
	@mkdir -p $(VENV) && touch $(UNFINISHED)
	@if [ ! -x $(VENV)/bin/python ]; then $(PYTHON) -m venv $(VENV); fi
	$(PIP) --editable ".$(1)"
	@rm $(UNFINISHED)
endef

$(RUN_READY): pyproject.toml constraints.txt
	$(call set-up,)
	@touch $@

$(DEV_READY): pyproject.toml constraints.txt
	$(call set-up,[dev])
	@touch $(RUN_READY) $@
