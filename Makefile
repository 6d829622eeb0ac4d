# `make demo` and `make test` are all that a newcomer needs. `make help` lists the rest.
.DEFAULT_GOAL := help
.PHONY: help setup test-setup build python wheel demo check style test test-busy test-integrations test-arm64 fuzz chaos bench bench-plan reproduce reproduce-long claims peers lint install clean

# Ninja runs jobs in parallel itself; two Ninjas in one build folder would disturb each other.
.NOTPARALLEL:

JOBS ?= $(shell nproc)
# Tests that start processes wait for one another; two more fill the gaps.
TEST_JOBS ?= $(shell expr $(JOBS) + 2)
PREFIX ?= /usr/local
TIME ?= 60
THINREDUCE := build/release/bin/thinreduce

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install missing Debian packages (as root or with sudo), download uPlot
	@scripts/setup.sh build
	@scripts/fetch_uplot.sh

build/%/build.ninja: CMakePresets.json | setup
	@cmake --preset $* >/dev/null

build: setup build/release/build.ninja ## build the library and build/release/bin/thinreduce
	@cmake --build --preset release -j $(JOBS)

# Configures again, because the first time CMake may not have found Python.
python: setup ## build the Python package; use it with PYTHONPATH=build/release/python
	@scripts/setup.sh python
	@cmake --preset release >/dev/null
	@cmake --build --preset release -j $(JOBS) --target thinreduce_python

wheel: setup ## build a wheel for this Python in build/dist
	@scripts/setup.sh python
	@scripts/wheel.sh

# Builds only the program: the tests take longer to compile than the demo to run.
demo: setup build/release/build.ninja ## train LeNet on MNIST with every method over a slow link, and compare
	@cmake --build --preset release -j $(JOBS) --target thinreduce_cli
	@scripts/demo.sh

check: setup build/release/build.ninja ## run the core tests once, on the best instruction set of this CPU
	@cmake --build --preset release -j $(JOBS) --target core_tests
	@ctest --preset release -L check -j $(JOBS)

style: ## check the format of C++ (clang-format) and Python (ruff, mypy), and the width of the pages
	@scripts/setup.sh style
	@scripts/style.sh

# Installs the browser before CMake looks for it.
test-setup: setup
	@scripts/setup.sh test
	@scripts/setup_torch2.sh

test: test-setup style python build build/asan/build.ninja build/tsan/build.ninja ## run all tests, style and sanitizers included
	@ctest --preset release -LE best -j $(TEST_JOBS)
	@cmake --build --preset asan -j $(JOBS) --target core_tests
	@ctest --preset asan -L core -j $(TEST_JOBS)
	@cmake --build --preset tsan -j $(JOBS) --target core_tests
	@ctest --preset tsan -L core -j $(TEST_JOBS)

# Not part of test, because it takes an hour or more.
test-busy: test-setup python build ## run the release tests three times in a row beside 20 busy processes: none may depend on speed
	@scripts/busy.sh 20 ctest --preset release -LE best -j 8 --repeat until-fail:3

# Not part of test, because it downloads large packages. The second file has the example of torchrun.
test-integrations: python ## run the examples of Lightning, Hugging Face and torchrun, with further Python packages
	@scripts/setup_torch2.sh integrations
	@PYTHONPATH=build/release/python PYTHONDONTWRITEBYTECODE=1 build/integrations/bin/python -m pytest -q \
	  -p no:cacheprovider python/tests/test_integrations.py \
	  'python/tests/test_examples.py::test_a_run_that_crashes_and_resumes_ends_with_the_same_bits'

# Needs neither PyTorch nor MPI, so it does not depend on setup.
test-arm64: ## run the tests of kernels, wire format, methods and golden means on arm64, under an emulator
	@scripts/setup.sh arm64
	@cmake --preset arm64 >/dev/null
	@cmake --build --preset arm64 -j $(JOBS) --target core_tests
	@ctest --preset arm64 -L core -j $(JOBS)

# TIME is that of all drivers together, in seconds; DRIVERS="frame spec" chooses some.
fuzz: setup ## feed hostile bytes to everything that reads bytes, for TIME=60 seconds in total (clang, libFuzzer)
	@scripts/setup.sh fuzz
	@cmake --preset fuzz >/dev/null
	@cmake --build --preset fuzz -j $(JOBS) --target fuzz_drivers
	@scripts/fuzz.sh $(TIME) $(DRIVERS)

# Not part of test, which runs a few trials of each scenario. ONLY="kill flip" chooses scenarios, COUNT=20 the trials per scenario.
chaos: python build ## kill and stop ranks, alter their bytes, fill their disk: thousands of trials; takes half an hour or more, continues after a stop
	@PYTHONPATH=build/release/python PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 tests/chaos \
	  $(if $(COUNT),--count $(COUNT)) $(if $(ONLY)$(COUNT),,--page docs/reliability.md) $(ONLY)

bench: build ## time kernels, codecs and all-reduces, compare with memcpy, Gloo and MPI, and measure memory
	@# Two of these are built only with Google Benchmark and FFTW.
	@for bench in kernels_bench fft_bench entropy_bench variance_bench dqsg_bits checks_bench memory_bench; do \
	  if [ -x build/release/bin/$$bench ]; then build/release/bin/$$bench || exit 1; fi; done
	@$(THINREDUCE) bench codec
	@$(THINREDUCE) bench reduce --ranks 4 --transport gloo
	@$(THINREDUCE) bench reduce --ranks 4 --transport mpi
	@$(THINREDUCE) bench reduce --ranks 4 --link 1gbit
	@$(THINREDUCE) bench reduce --ranks 2 --floats 1000 --steps 200
	@$(THINREDUCE) train --bench-plain --steps 100

bench-plan: build ## compare what auto chooses with every fixed method on a grid of links, for docs/planner.md; takes hours (MINUTES=30: no longer), continues after a stop
	@python3 bench/plan_grid.py docs/planner.md $(if $(MINUTES),--minutes $(MINUTES))

# Debian's Python, because another one does not see Debian's packages.
reproduce: setup build/release/build.ninja ## write the results page: train CIFAR-10 with every method; takes over an hour, continues after a stop
	@scripts/setup.sh reproduce
	@cmake --build --preset release -j $(JOBS) --target thinreduce_cli
	@/usr/bin/python3 -m reproduce

# Not part of reproduce. ONLY="resnet9-fft-*" chooses trainings; TRAININGS in reproduce/long_settings.py has the names.
reproduce-long: setup build/release/build.ninja ## train what the claims name, three seeds each: about 23 hours, continues after a stop; results in docs/results/long.md
	@scripts/setup.sh reproduce
	@cmake --build --preset release -j $(JOBS) --target thinreduce_cli
	@/usr/bin/python3 -m reproduce.long $(ONLY)

# Needs the Python package: one claim is about what its codec gives back.
claims: python ## write docs/claims.md: a verdict on every claim of the papers, with the trainings of reproduce-long so far; takes half an hour, continues after a stop
	@scripts/setup.sh reproduce
	@cmake --build --preset release -j $(JOBS) --target thinreduce_cli
	@PYTHONPATH=build/release/python /usr/bin/python3 -m claims

# ONLY="DDP; thinreduce auto" chooses contenders, OPTIONS="--links 20mbit --seeds 1" further parts.
peers: python ## write docs/peers.md: time to a loss against other tools on links of tc; takes hours, needs root, continues after a stop
	@scripts/setup.sh reproduce
	@scripts/setup_peers.sh
	@PYTHONPATH=build/release/python PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -m peers $(if $(ONLY),--only "$(ONLY)") $(OPTIONS)

# clang 14 fails on the headers of torch, so files that include them have only GCC's warnings.
SEES_TORCH := bench_plain|bench_second_moment|evaluate|feed|gpt|gradient_buckets|local_rounds|models|network_state|replica|replica_test|sample_groups|sample_groups_test|second_moment|second_moment_test|watched_layers
LINTED = git ls-files '*.cc' | grep -vE '^(tests/consumer/.*|apps/train/($(SEES_TORCH)))\.cc$$'
IS_TEST := ^tests/|_test\.cc$$
TIDY := xargs -P $(JOBS) -n 4 clang-tidy --quiet -p build/lint

lint: style ## run style and clang-tidy
	@scripts/setup.sh lint
	@cmake --preset lint >/dev/null
	@$(LINTED) | grep -vE '$(IS_TEST)' | $(TIDY)
	@# Products of sizes in tests are small constants.
	@$(LINTED) | grep -E '$(IS_TEST)' \
	  | $(TIDY) --checks=-bugprone-implicit-widening-of-multiplication-result

install: build ## install the library, headers, CMake package and program to PREFIX
	@cmake --install build/release --prefix $(PREFIX)

clean: ## remove everything that was built
	@rm -rf build
