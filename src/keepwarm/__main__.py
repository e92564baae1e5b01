"""`python -m keepwarm`, which is `keepwarm`."""

from __future__ import annotations

import sys

from keepwarm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
