"""Reports: measurements, verdicts and drifts made into text, documents and pages.

Pure functions: nothing here writes, measures or judges. Imports every room below `plugin` but `measure`.
"""
