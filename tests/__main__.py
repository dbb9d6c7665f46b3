"""`python3 -m tests`: see tests/run.py."""

import sys

from tests.run import main

if __name__ == "__main__":
    sys.exit(main())
