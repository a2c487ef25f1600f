"""`python -m wflow`: the command `wflow`."""

import sys

from wflow.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
