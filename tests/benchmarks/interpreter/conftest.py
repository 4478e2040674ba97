import os

# These tests run kernels in Triton's interpreter, which must be chosen before triton is imported:
# tests/benchmarks/test_interpreter.py runs them in a process of their own.
collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
