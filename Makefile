# `make` lists the targets. A target that needs .venv makes it first when it is missing or out of date.
# Without make: `python notebooks/course/setup_venv.py` (with `dev`, for the tests), then `python -m art_nb` of .venv.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
    $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
VENV_PYTHON := .venv/bin/python
# setup installs packages uncompiled. With this variable set, each start of Python would compile torch again: 29 s instead of 11.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help python setup demo test quick lab doctor lock colab data book clean

help:
	@echo "make demo    train a language model to play 2048 in this terminal"
	@echo "make lab     open the notebooks in JupyterLab"
	@echo "make test    run the linter, the type checker, all tests and all notebooks"
	@echo "make quick   run the linter, the type checker and the fast tests (5 minutes)"
	@echo "make doctor  check what is installed, and say what to do about what is not"
	@echo "make setup   make .venv (the other targets do so when they need it)"
	@echo "make lock    resolve all packages again and write requirements/*.txt"
	@echo "make colab   write out/art_nb.zip, to upload on Colab"
	@echo "make data    rebuild the base models and the environments' data (two and a half hours; downloads a model, 93 MB)"
	@echo "make book    build the course's site, which needs no Python to read, in out/book"
	@echo "make clean   delete .venv, .venv-book, out/ and caches; keep what you trained (.art/)"

python:
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed: https://www.python.org/downloads/"; exit 1; }

setup: python
	@$(PYTHON) -I notebooks/course/setup_venv.py $(EXTRAS)

demo: setup
	@$(VENV_PYTHON) -m art_nb demo

test: EXTRAS = dev
test: setup
	@$(VENV_PYTHON) -m art_nb test

quick: EXTRAS = dev
quick: setup
	@$(VENV_PYTHON) -m art_nb test --quick

lab: setup
	@$(VENV_PYTHON) -m art_nb lab

doctor: setup
	@$(VENV_PYTHON) -m art_nb doctor

lock: EXTRAS = dev
lock: setup
	@$(VENV_PYTHON) -m art_nb lock

colab: setup
	@$(VENV_PYTHON) -m art_nb colab

data: EXTRAS = real
data: setup
	$(VENV_PYTHON) -m data

# The book has its own environment, made in a minute: it needs neither torch nor the package.
book: .venv-book/made
	@.venv-book/bin/python -m book.build

.venv-book/made: pyproject.toml | python
	$(PYTHON) -m venv --clear .venv-book
	.venv-book/bin/python -m pip install --quiet $$($(PYTHON) -c "import tomllib; \
	    print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['book'])")
	@touch $@

clean:
	rm -rf .venv .venv-book out build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
