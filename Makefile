PYTHON := .venv/bin/python

.PHONY: run test check card setup

# Reports, a few hundred training steps, and the table that says which machine to rent.
run: setup
	@$(PYTHON) -m experiments.demo

# Two workers, a file to each at a time. ARGS go to pytest, as in: make test ARGS='-k lock'
test: setup
	$(PYTHON) -m pytest -n 2 --dist loadscope $(ARGS)

# What the first GPU of this machine really does; without one, its CPU.
card: setup
	@$(PYTHON) -m experiments.card

check: setup
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	.venv/bin/lint-imports
	$(PYTHON) -m pyright

setup:
	@tools/setup gpu-targets,tpu-targets,dev,experiments
