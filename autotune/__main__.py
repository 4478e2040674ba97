"""``python -m autotune``."""

import sys

from tritonsnap.autotune.command import main

sys.exit(main())
