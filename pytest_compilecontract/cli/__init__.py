"""The `compilecontract` command, one module per command.

Imports every other package. No torch here: what needs it runs in a child process.
"""

from .main import main

__all__ = ["main"]
