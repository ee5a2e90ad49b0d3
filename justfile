# Chores, run by https://just.systems: `just` lists them.

# Profile of the programs in packages. `release` builds faster, `dist` runs a little faster.
profile := "dist"
# Packages run on Linux with this glibc or newer.
glibc := "2.17"
target := "x86_64-unknown-linux-gnu"

[private]
default:
    @just --list

# Build all programs and run the example
run:
    cargo build --release && target/release/pmc run examples/diamond/workflow.yml

# Format, lint and test, without the end-to-end tests
check:
    cargo fmt --all
    cargo clippy --workspace --all-targets -- -D warnings
    cargo test --workspace

# All tests, with real MPI, Slurm and Pegasus (Debian 12)
test *STEPS:
    tests/run {{STEPS}}

# Known defects of libraries, with a copy of github.com/rustsec/advisory-db in DIR (needs cargo-audit)
audit DIR:
    cargo audit --no-fetch --db {{DIR}}

# Does a test fail for each small change of the code? One of N changes in FILES of PACKAGE (needs cargo-mutants)
mutants PACKAGE FILES SHARD="0/8" *ARGS:
    nice -n 19 cargo mutants --jobs 1 --timeout 240 --package {{PACKAGE}} --file '{{FILES}}' \
        --shard {{SHARD}} --sharding round-robin --output target {{ARGS}}

# Fuzz the readers of files and messages with libFuzzer, SECONDS for each ENTRY (needs a C++ compiler)
fuzz SECONDS="60" *ENTRIES:
    fuzz/run {{SECONDS}} {{ENTRIES}}

# Manual pages and completions in share/
generate:
    cargo xtask generate

# The documents as a site with search, into target/site (needs mkdocs-material from PyPI)
site:
    packaging/site/build

# Licences and known defects of libraries
deny:
    cargo deny check

# All packages, into target/packages
packages:
    packaging/build {{profile}} {{target}} {{glibc}} wheel deb tarball snakemake

# A Python wheel with all programs
wheel:
    packaging/build {{profile}} {{target}} {{glibc}} wheel

# A Debian package
deb:
    packaging/build {{profile}} {{target}} {{glibc}} deb

# A tarball for any Linux
tarball:
    packaging/build {{profile}} {{target}} {{glibc}} tarball

# The packages for aarch64, into target/aarch64/build/packages (needs root, mmdebstrap and 4 GB)
aarch64:
    packaging/aarch64 {{profile}} {{glibc}} target/aarch64

# The executor plugin of Snakemake, a Python wheel
snakemake-plugin:
    packaging/build {{profile}} {{target}} {{glibc}} snakemake

# Do the same sources give the same bytes? Builds all packages twice
same-bytes:
    packaging/twice {{profile}} {{target}} {{glibc}}

# Install each package into an empty environment and run the example with it
check-packages:
    packaging/check

# Kill programs at random moments, fill the disk, take directories away: nothing may be lost (--rounds N --seed N)
crash *OPTIONS:
    cargo xtask crash {{OPTIONS}}

# Lose nodes, kill programs and cancel jobs while batch jobs of seconds follow each other (--rounds N --seed N)
chains *OPTIONS:
    cargo xtask chains {{OPTIONS}}

# Switch off, cut off, stop and kill nodes and masters of runs with agents (--rounds N --seed N --master-kills N)
node-faults *OPTIONS:
    cargo xtask node-faults {{OPTIONS}}

# Run whole runs on simulated hosts, disks and networks (--rounds N --seed N --minutes M)
sim *OPTIONS:
    cargo xtask sim {{OPTIONS}}
