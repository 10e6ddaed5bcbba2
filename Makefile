# Every command makes the environment it needs, .venv, first: lessonlib/environment.py does nothing when that is ready.
PYTHON ?= python3
VENV := .venv/bin/python

SEEDS ?= 0 1 2 3 4

.PHONY: help env vllm lesson test bench lab notebooks reference

help:
	@echo "make lesson     the whole course in one run: environment, model, pipeline; ends with a table and a row in SCOREBOARD.md"
	@echo "make test       every test, the notebooks among them"
	@echo "make bench      scorer, loss, training and decoding steps against the hardware's floor, rounds against the formula; how fast the sliders answer a key; nothing is stored"
	@echo "make lab        JupyterLab on the first notebook (more options for it: make lab LAB='--ip=0.0.0.0 --no-browser')"
	@echo "make notebooks  build the notebooks anew from notebooks/src"
	@echo "make reference  record anew what the course ships: answers, long trainings, a draft (on a GPU; SEEDS='0 1 2 3 4')"
	@echo "make vllm       vLLM in an environment of its own, .venv-vllm, to write answers with (generate --engine vllm)"
	@echo "make env        the environment alone (another Python: make env PYTHON=python3.12)"

env:
	@$(PYTHON) lessonlib/environment.py

vllm: env
	@$(VENV) -m lessonlib.traffic.vllm_environment

lesson: env
	@$(VENV) -m lessonlib lesson

# Two threads: the time is the same on every machine, and the parts that run side by side do not crowd each other out.
test: export OMP_NUM_THREADS = 2
test: export HF_HUB_OFFLINE = 1
test: env
	@echo "Running every test: about 30 minutes on two cores, no network."
	@$(VENV) -m pytest

# On a quiet machine. The kernels against what the hardware can do; then, for each slider, from a key to a painted page.
bench: env
	@$(VENV) tests/benchmarks/floors.py
	@$(VENV) tests/benchmarks/decoding.py
	@PYTHONPATH=tests $(VENV) -m workbook.browser.bench

lab: env
	@echo "Opening JupyterLab on the first notebook; stop it with Ctrl-C."
	@$(VENV) -m jupyterlab $(if $(filter 0,$(shell id -u)),--allow-root) $(LAB) notebooks/00_meet_the_pair.ipynb

notebooks: env
	@$(VENV) -m lessonlib.workbook.build

reference: export LESSON_PRESET = tiny
reference: env
	@$(VENV) -m lessonlib generic-text
	@set -e; for what in answers off-the-shelf sentences; do $(VENV) -m lessonlib reference $$what; done
	@set -e; for seed in $(SEEDS); do $(VENV) -m lessonlib reference trainings --seed $$seed; done
	@$(VENV) -m lessonlib reference plain
	@$(VENV) -m lessonlib reference heads
	@# decoded, leaks and board are timings; the shipped ones are of two cores: the same commands there, the first two with --drafts FOLDER
	@set -e; for what in distilled decoded leaks board; do $(VENV) -m lessonlib reference $$what; done
