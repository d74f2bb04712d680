"""Reports: measurements, verdicts and drift as text, documents and pages.

Pure functions: nothing here writes, measures or judges. Imports every package below `plugin` except `measure`.
"""
