"""`python -m tritonsnap` is the `tritonsnap` command."""

import sys

from tritonsnap.cli import main

if __name__ == "__main__":
    sys.exit(main())
