"""What tests share: receipts and measurements to start from, and a bench of false interpreters for upgrades."""
