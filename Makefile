PYTHON := .venv/bin/python
EXTRAS := gpu-targets,tpu-targets,dev,experiments,docs
# Bytecode is kept whatever the surroundings say: tests start many processes.
PYTEST = PYTHONDONTWRITEBYTECODE= $(1)/bin/python -m pytest -n 2 --dist loadscope \
  --no-loadscope-reorder

.PHONY: run test test-oldest check card docs setup

# Reports, a few hundred training steps, and the table that says which machine to rent.
run: setup
	@$(PYTHON) -m experiments.demo

# Two workers, a file to each at a time, in the order of tests/conftest.py. ARGS go to pytest, as in: make test ARGS='-k lock'
test: setup
	$(call PYTEST,.venv) $(ARGS)

# The same with Python 3.12 and the JAX of tools/oldest.txt, in an environment of its own.
test-oldest:
	@tools/setup --oldest $(EXTRAS)
	$(call PYTEST,.venv-oldest) $(ARGS)

# What the first GPU of this machine really does. ARGS='--platform cpu': what its CPU does.
card: setup
	@$(PYTHON) -m experiments.calibrate --out runs/card $(ARGS)

# The manual, as docs/_build/index.html.
docs: setup
	$(PYTHON) -m sphinx -W --keep-going -n -b html docs docs/_build

check: setup
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	.venv/bin/lint-imports
	$(PYTHON) -m pyright

setup:
	@tools/setup $(EXTRAS)
