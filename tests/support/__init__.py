"""What tests share: receipts to start from, false interpreters for upgrades, and sessions that are forked."""
