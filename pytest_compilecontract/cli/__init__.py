"""The `compilecontract` command, one module per command.

On top of all rooms. No torch here: what needs it runs in a child.
"""

from .main import main

__all__ = ["main"]
