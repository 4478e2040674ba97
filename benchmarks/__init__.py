"""Benchmarks of tritonsnap; every one is a module to run with ``python -m benchmarks.<name>``."""
