"""Triton's interpreter, switched on before anything imports triton."""

import os
import sys

import pytest

if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
    raise pytest.UsageError("triton compiles in this process already; run tests/kernels alone")
os.environ["TRITON_INTERPRET"] = "1"
