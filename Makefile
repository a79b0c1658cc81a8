PYTHON := .venv/bin/python

.PHONY: run test check card setup

setup:
	@tools/setup gpu-targets,dev,experiments

test: setup
	$(PYTHON) -m pytest

check: setup
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	.venv/bin/lint-imports
	$(PYTHON) -m pyright
