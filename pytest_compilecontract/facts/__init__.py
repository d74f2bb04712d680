"""Facts: what is known of a contract, a lane and a run, as frozen data.

Reads and writes no files, and imports neither torch nor pytest: only the small modules beside it.
"""
