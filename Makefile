# `make` lists the targets. Each one that needs .venv makes it first when it is missing or stale.
# Without make: `python art_nb/course/setup_venv.py` (with `dev`, for the tests), then `python -m art_nb` of .venv.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
    $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
VENV_PYTHON := .venv/bin/python
# setup installs packages uncompiled. Where this is set, each start of Python would compile torch and all anew: 29 s, not 11.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test lab doctor data book clean

help:
	@echo "make demo    train a language model to play 2048 in this terminal"
	@echo "make lab     open the notebooks in JupyterLab"
	@echo "make test    run all tests"
	@echo "make doctor  say what is installed and what is missing"
	@echo "make data    make the base models and the tasks' data anew (two hours; fetches a model, 93 MB)"
	@echo "make book    make the site of the course that needs no Python, out/book"
	@echo "make setup   make .venv (the others do so by themselves)"
	@echo "make clean   delete .venv, .venv-book, out/ and caches; keep what you trained (.art/)"

setup:
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed: https://www.python.org/downloads/"; exit 1; }
	@$(PYTHON) -I art_nb/course/setup_venv.py $(EXTRAS)

demo: setup
	@$(VENV_PYTHON) -m art_nb demo

test: EXTRAS = dev
test: setup
	@$(VENV_PYTHON) -m art_nb test

lab: setup
	@$(VENV_PYTHON) -m art_nb lab

doctor: setup
	@$(VENV_PYTHON) -m art_nb doctor

data: EXTRAS = real
data: setup
	$(VENV_PYTHON) -m data

# An environment of its own, made in a minute: the book needs neither torch nor the package.
book: .venv-book/made
	@.venv-book/bin/python book/build.py

.venv-book/made: pyproject.toml
	$(PYTHON) -m venv --clear .venv-book
	.venv-book/bin/python -m pip install --quiet $$($(PYTHON) -c "import tomllib; \
	    print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['book'])")
	@touch $@

clean:
	rm -rf .venv .venv-book out build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
