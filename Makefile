# Everything a newcomer needs: `make demo` and `make test`. `make help` lists the rest.
.DEFAULT_GOAL := help
.PHONY: help setup test-setup build python demo check test bench reproduce lint install clean

# Ninja runs jobs side by side; two of them in one folder would get in each other's way.
.NOTPARALLEL:

JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
THINREDUCE := build/release/bin/thinreduce

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install missing Debian packages (as root or with sudo), fetch uPlot
	@scripts/setup.sh build
	@scripts/fetch_uplot.sh

build/%/build.ninja: CMakePresets.json | setup
	@cmake --preset $* >/dev/null

build: setup build/release/build.ninja ## build the library and build/release/bin/thinreduce
	@cmake --build --preset release -j $(JOBS)

# CMake looks for Python again, because it may have been configured without.
python: setup ## build the Python package: PYTHONPATH=build/release/python
	@scripts/setup.sh python
	@cmake --preset release >/dev/null
	@cmake --build --preset release -j $(JOBS) --target thinreduce_python

# Only the programs: tests take longer to compile than the demo to run.
demo: setup build/release/build.ninja ## train LeNet on MNIST with every method over a thin link, and compare
	@cmake --build --preset release -j $(JOBS) --target thinreduce_cli
	@scripts/demo.sh

# A browser first: CMake looks for it.
test-setup: setup
	@scripts/setup.sh test

check: setup build/release/build.ninja ## the core tests once, on the best instruction set of this CPU
	@cmake --build --preset release -j $(JOBS) --target core_tests
	@ctest --preset release -L check -j $(JOBS)

test: test-setup python build build/asan/build.ninja build/tsan/build.ninja ## all tests, sanitizers included
	@ctest --preset release -LE best
	@cmake --build --preset asan -j $(JOBS) --target core_tests
	@ctest --preset asan -L core -j $(JOBS)
	@cmake --build --preset tsan -j $(JOBS) --target core_tests
	@ctest --preset tsan -L core -j $(JOBS)

bench: build ## speed of kernels, codecs and all-reduces against memcpy, Gloo and MPI
	@# Two of these are only built with Google Benchmark and FFTW.
	@for bench in kernels_bench fft_bench entropy_bench variance_bench dqsg_bits; do \
	  if [ -x build/release/bin/$$bench ]; then build/release/bin/$$bench || exit 1; fi; done
	@$(THINREDUCE) bench codec
	@$(THINREDUCE) bench reduce --ranks 4 --transport gloo
	@$(THINREDUCE) bench reduce --ranks 4 --transport mpi
	@$(THINREDUCE) bench reduce --ranks 4 --link 1gbit
	@$(THINREDUCE) bench reduce --ranks 2 --floats 1000 --steps 200
	@$(THINREDUCE) train --bench-plain --steps 100

# Debian's Python: another one first on the path would not see Debian's packages.
reproduce: setup build/release/build.ninja ## the results page: train CIFAR-10 with every method, over an hour; goes on when stopped
	@scripts/setup.sh reproduce
	@cmake --build --preset release -j $(JOBS) --target thinreduce_cli
	@/usr/bin/python3 -m reproduce

# clang 14 failed in the headers of torch where it was tried; what includes them is left to GCC's warnings.
SEES_TORCH := bench_plain|bench_second_moment|gradient_buckets|models|replica|replica_test|second_moment|second_moment_test|watched_layers
LINTED = git ls-files '*.cc' | grep -vE '^(tests/consumer/.*|apps/train/($(SEES_TORCH)))\.cc$$'
IS_TEST := ^tests/|_test\.cc$$
TIDY := xargs -P $(JOBS) -n 4 clang-tidy --quiet -p build/lint

lint: ## clang-format and clang-tidy
	@scripts/setup.sh lint
	@cmake --preset lint >/dev/null
	@git ls-files '*.cc' '*.h' | xargs clang-format --dry-run --Werror
	@$(LINTED) | grep -vE '$(IS_TEST)' | $(TIDY)
	@# Products of sizes in tests are small constants.
	@$(LINTED) | grep -E '$(IS_TEST)' \
	  | $(TIDY) --checks=-bugprone-implicit-widening-of-multiplication-result

install: build ## install library, headers, CMake package and program to PREFIX
	@cmake --install build/release --prefix $(PREFIX)

clean: ## remove everything that was built
	@rm -rf build
