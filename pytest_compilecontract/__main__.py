"""`python -m pytest_compilecontract` is `compilecontract`."""

import sys

from pytest_compilecontract.cli import main

if __name__ == "__main__":
    sys.exit(main())
