# make test   set up and run every check      make demo   set up and run the demonstration
# make lint   ruff and mypy alone             make venv   set up alone             make clean   remove all of it

# TVM 0.17 wants numpy 1.26, which has wheels up to Python 3.12.
PYTHON ?= $(shell for p in python3.11 python3.10 python3.12 python3; do \
	$$p -c pass >/dev/null 2>&1 && echo $$p && break; done)
RELAY := .venv/relay
# What makes a set-up stale when it changes.
SETUP := setup.py $(addprefix roller_tvm/tvm_env/,relay-line.txt hook.py install.py stub.py)

# One block a TVM line: extras of ours, then what pip cannot say with extras.
relay_EXTRAS := relay,onnx,demo,dev
define relay_STEPS
	$(RELAY)/bin/roller-tvm install-tvm
	@# Only its model files are used; its own dependencies (a GUI OpenCV among them) are not.
	$(RELAY)/bin/pip install $(QUIET) --no-deps rapidocr-onnxruntime
	@# Says what the machine lacks (a C++ compiler, say) now rather than in the middle of a tuning.
	$(RELAY)/bin/roller-tvm doctor
endef

QUIET := --quiet --disable-pip-version-check

.PHONY: test pytest demo venv lint clean
.DELETE_ON_ERROR:

test: lint pytest

pytest: venv
	$(RELAY)/bin/python -m pytest $(PYTEST_ARGS)

demo: venv
	$(RELAY)/bin/python python/demo.py

venv: $(RELAY)/.ready

lint: venv
	$(RELAY)/bin/ruff check .
	$(RELAY)/bin/mypy

clean:
	rm -rf .venv demo-out .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info

.venv/%/.ready: export PIP_CONSTRAINT = $(CURDIR)/requirements/$*.txt
.venv/%/.ready: requirements/%.txt $(SETUP)
	@echo "setting up .venv/$* with $(PYTHON) (a few minutes the first time)"
	@test -n "$(PYTHON)" || { echo "no Python found: sudo apt-get install -y python3 python3-venv"; exit 1; }
	@$(PYTHON) -m venv .venv/$* || { echo "mend: sudo apt-get install -y python3-venv"; exit 1; }
	.venv/$*/bin/pip install $(QUIET) --editable ".[$($*_EXTRAS)]"
	$($*_STEPS)
	@touch $@
