"""``python -m autotune``."""

import sys

from tritonsnap.autotune.command import main
from tritonsnap.console import run_command

sys.exit(run_command(main, "interrupted"))
