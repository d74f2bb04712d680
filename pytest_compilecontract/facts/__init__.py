"""Facts: what is known of a contract, a lane and a run, as frozen data.

Reads and writes nothing, and knows neither torch nor pytest. Imports nothing of the package but its smallest modules.
"""
