"""Files: receipts and logs of runs, written whole or not at all, and read with one clear error.

Imports `facts`.
"""
