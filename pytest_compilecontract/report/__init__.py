"""Reports: measurements and verdicts made into text. Pure functions; nothing here writes, measures or judges."""
