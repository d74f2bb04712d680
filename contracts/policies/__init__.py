"""Reference code of the policies, each one to copy; `contracts/test_policy_*.py` proves what it promises."""
