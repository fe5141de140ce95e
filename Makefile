# make test   set up and run every check, one more at a time than there are CPUs; one that fails does not stop the others
# make demo   set up and run the demonstration, five minutes at most; make demo-full   both lines, for long
# make docs   the documentation site
# make golden   write all golden files anew (plans, numbers, steps, loops), after a change that is meant to change them
# make lint   ruff and mypy alone             make venv   set up alone             make clean   remove all of it
# make nightly   every check, and what is too long for each change: every operator's GPU kernels executed
# make gpu-kit   build/gpu-kit: every kernel compiled, for gpu_kit.py on a machine with a card (KIT_ARGS="--only C0,M1")
# .venv/relay/bin/python -m roller_bench --help   the figures of docs/results.md
# make test-torch   what needs torch, in an environment of its own
# make pytest-relay, pytest-relax   the tests of one of TVM's lines, PYTEST_ARGS="tests/te -x"; pytest-core,
#   pytest-plan, pytest-emulate   of what needs none

# TVM 0.17 wants numpy 1.26, which has wheels up to Python 3.12.
PYTHON ?= $(shell for p in python3.11 python3.10 python3.12 python3; do \
	$$p -c pass >/dev/null 2>&1 && echo $$p && break; done)
# TVM's two lines, each in an environment of its own: a process imports one TVM.
LINES := relay relax
RELAY := .venv/relay
RELAX := .venv/relax
# The Relax line with torch beside it, for the tests of torch's models.
TORCH := .venv/torch
# What makes a set-up stale when it changes.
SETUP := setup.py $(addprefix roller_tvm/tvm_env/,relay-line.txt hook.py install.py stub.py ffi.py)

# One block a TVM line: extras of ours, then what pip cannot say with extras.
relay_EXTRAS := relay,onnx,demo,bench,dev
define relay_STEPS
	@# Of rapidocr only the model files are used; xgboost, which all that search learn with, lists a library for GPUs.
	$(call install,relay,--no-deps bitblas==0.1.0.post1 rapidocr-onnxruntime xgboost scipy)
	$(RELAY)/bin/roller-tvm install-tvm
	@# Says what the machine lacks (a C++ compiler, say) now rather than in the middle of a tuning.
	$(RELAY)/bin/roller-tvm doctor
endef

relax_EXTRAS := relax,relax-onnx,demo,bench,test
define relax_STEPS
	$(call install,relax,--no-deps rapidocr-onnxruntime xgboost scipy)
	$(RELAX)/bin/roller-tvm doctor
endef

torch_EXTRAS := relax,relax-onnx,relax-torch,test
define torch_STEPS
endef

QUIET := --quiet --disable-pip-version-check
# uv installs in a tenth of pip's time; pip serves if uv cannot be had or does not know the machine's package index.
UV := .venv/uv/bin/uv
# Folders of wheels, of torch for CPUs say, that pip is told of.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
install = $(UV) pip install --quiet --python .venv/$(1)/bin/python --constraint requirements/$(1).txt $(2) 2>.venv/uv.log \
	|| .venv/$(1)/bin/pip install $(QUIET) --constraint requirements/$(1).txt $(2)

# The longest ones first. Their output comes in one piece, when each has ended.
SUITES := pytest-relax-rest pytest-relax-passes pytest-relay-rest pytest-relay-passes test-torch pytest-emulate \
	pytest-core pytest-plan lint
# Two more than there are CPUs: tests wait, too (for processes, for time to pass), a tenth of the time with one more.
JOBS := $(shell cpus=$$(nproc 2>/dev/null || echo 1); \
	echo $$((cpus + 2 < $(words $(SUITES)) ? cpus + 2 : $(words $(SUITES)))))

# Processes that the tests start find their bytecode; without it each one compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: docs golden test nightly pytest $(SUITES) pytest-relay pytest-relax demo demo-time demo-full gpu-kit \
	venv lint clean
.DELETE_ON_ERROR:

# Both lines first: of suites that wait for a set-up, make starts the longest last.
test: venv
	@$(MAKE) --no-print-directory --jobs=$(JOBS) --output-sync=target --keep-going $(SUITES)

nightly:
	@$(MAKE) --no-print-directory test NIGHTLY=--nightly

pytest: $(filter pytest-%,$(SUITES))

# The tests of a line, or one of two parts of them, so that all cores have work to the end.
part = $(if $(filter %-passes,$@),tests/$(1),$(if $(filter %-rest,$@),--ignore=tests/$(1)))

# What needs no TVM, in three parts: whichever core is free first takes one.
NO_TVM := -m "not (tvm or relax or te)"
EMULATE := tests/emulate tests/kit tests/bench
PLAN := tests/plan tests/model tests/rammer tests/expr tests/schedules

pytest-relay pytest-relay-passes pytest-relay-rest: $(RELAY)/.ready
	$(RELAY)/bin/python -m pytest -m "tvm or te" $(call part,relay) $(NIGHTLY) $(PYTEST_ARGS)

pytest-relax pytest-relax-passes pytest-relax-rest: $(RELAX)/.ready
	$(RELAX)/bin/python -m pytest -m "relax or te" $(call part,relax) $(NIGHTLY) $(PYTEST_ARGS)

# Torch is set up by its own suite: one that waits for a set-up would have make start the suites behind it first.
test-torch: $(RELAY)/.ready
	@$(MAKE) --no-print-directory $(TORCH)/.ready
	@# GPT-2 and Llama with their caches.
	$(if $(NIGHTLY),$(call install,torch,transformers))
	$(TORCH)/bin/python -m pytest $(if $(NIGHTLY),,-m "not nightly") tests/torch tests/test_api.py -k "torch or Torch" $(NIGHTLY) $(PYTEST_ARGS)

pytest-core: $(RELAY)/.ready
	$(RELAY)/bin/python -m pytest $(NO_TVM) $(EMULATE:%=--ignore=%) $(PLAN:%=--ignore=%) $(NIGHTLY) $(PYTEST_ARGS)

pytest-emulate: $(RELAY)/.ready
	$(RELAY)/bin/python -m pytest $(NO_TVM) $(EMULATE) $(NIGHTLY) $(PYTEST_ARGS)

pytest-plan: $(RELAY)/.ready
	$(RELAY)/bin/python -m pytest $(NO_TVM) $(PLAN) $(NIGHTLY) $(PYTEST_ARGS)

golden: $(RELAY)/.ready $(RELAX)/.ready
	for line in $(LINES); do \
		.venv/$$line/bin/python -m pytest --update-golden $$(grep -rlw --include='test_*.py' -e golden -e update-golden tests); done

demo: demo-time $(RELAX)/.ready
	$(RELAX)/bin/python python/demo.py

demo-time:
	@test -e $(RELAX)/.ready || echo "make demo: one to two minutes of set-up, then three minutes at most"

demo-full: demo-full-relay demo-full-relax

# Two models tuned, beside untuned TVM and onnxruntime; ResNet-50 planned and compiled for an H200 that is not here.
demo-full-%: .venv/%/.ready
	.venv/$*/bin/roller-tvm compare --models detection,resnet50 --tuners roller:1,roller,untuned,onnxruntime -o demo-out/$*
	.venv/$*/bin/roller-tvm tune demo-out/$*/models/resnet50.onnx --target "cuda -arch=sm_90 -model=h200" --trials 0 -o demo-out/$*/h200.json

# NVRTC of CUDA 12: three times as fast as nvcc, and its cubins run with drivers of CUDA 12 too.
gpu-kit: export PIP_CONSTRAINT = $(CURDIR)/requirements/relax.txt
gpu-kit: $(RELAX)/.ready
	$(RELAX)/bin/pip install $(QUIET) nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12
	PYTHONPATH=python $(RELAX)/bin/python -m roller_bench.kit $(KIT_ARGS)

# One after the other: both write the same egg-info.
venv:
	@for line in $(LINES); do $(MAKE) --no-print-directory .venv/$$line/.ready || exit; done

# The documentation site, in site/. It reads the code; nothing of it is imported.
docs: .venv/docs/ready
	.venv/docs/bin/mkdocs build --strict --quiet
	@echo "site/index.html"

.venv/docs/ready: requirements/docs.txt
	$(PYTHON) -m venv .venv/docs
	.venv/docs/bin/pip install $(QUIET) -r requirements/docs.txt
	@touch $@

lint: $(RELAY)/.ready
	$(RELAY)/bin/ruff check .
	$(RELAY)/bin/mypy
	@$(RELAY)/bin/lint-imports > .venv/imports.log || { cat .venv/imports.log; exit 1; }

clean:
	rm -rf .venv site demo-out .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info

.venv/%/.ready: export PIP_CONSTRAINT = $(CURDIR)/requirements/$*.txt
.venv/%/.ready: requirements/%.txt $(SETUP)
	@echo "setting up .venv/$* with $(PYTHON) (a few minutes the first time)"
	@test -n "$(PYTHON)" || { echo "no Python found: sudo apt-get install -y python3 python3-venv"; exit 1; }
	@test -x $(UV) || { $(PYTHON) -m venv .venv/uv && .venv/uv/bin/pip install $(QUIET) uv; } || true
	@$(UV) venv --quiet --allow-existing --seed --python $(PYTHON) .venv/$* 2>.venv/uv.log || $(PYTHON) -m venv .venv/$* \
		|| { echo "mend: sudo apt-get install -y python3-venv"; exit 1; }
	$(call install,$*,--editable ".[$($*_EXTRAS)]")
	$($*_STEPS)
	@touch $@
