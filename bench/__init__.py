"""Benchmarks beside the peers. `make bench` runs all of them; see README.md."""
