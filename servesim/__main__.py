"""`python -m servesim`: the same command as the installed `servesim`."""

from __future__ import annotations

import sys

from servesim.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
