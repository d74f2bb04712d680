"""What tests share: receipts to start from, false interpreters for upgrades, and sessions forked with torch imported."""
