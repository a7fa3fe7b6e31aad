# make setup   .venv with the pinned set (constraints.txt); does nothing when it is up to date
# make demo    set-up, then the main job: RUDDER against GAE and Monte Carlo on a delayed reward
# make test    set-up, then lint, format, types, tests

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.PHONY: setup demo test

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@[ -x $(BIN)/pip ] || { \
	  $(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	    echo "jaxcredit needs Python 3.11, 3.12 or 3.13, but $(PYTHON) is $$($(PYTHON) --version 2>&1)."; \
	    echo "Name another one: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12"; \
	    exit 1; \
	  }; \
	  echo "== Creating .venv with $$($(PYTHON) --version)"; \
	  $(PYTHON) -m venv .venv; \
	}
	@echo "== Installing the pinned packages into .venv (once, a few minutes)"
	@$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[dev]' | awk ' \
	  /^(Collecting|Processing)/ && ++n % 20 == 0 { print "   " n " packages found"; fflush() } \
	  /^Installing collected/ { print "   unpacking " NF - 3 " packages"; fflush() } \
	  /^Successfully installed/ { print "   done" }'
	@touch $@

demo: setup
	@echo "== Training: GAE, GAE with memory, Monte Carlo and RUDDER on DelayedKeyToDoor, 32 seeds each"
	@rm -rf runs/demo
	@$(BIN)/jaxcredit compare --env DelayedKeyToDoor --env-params event_cost=4 \
	  --credits gae gae+gru montecarlo rudder --seeds 32 \
	  --settings experiments/results/delayed_key_to_door/settings.json --directory runs/demo

test: setup
	@echo "== Lint"
	@$(BIN)/ruff check
	@echo "== Format"
	@$(BIN)/ruff format --check
	@echo "== Types"
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@echo "== Tests"
	@$(BIN)/pytest --quiet --numprocesses 2 --dist loadfile
