"""Reference code of the policies, each a piece to copy; `contracts/test_policy_*.py` proves what it promises."""
