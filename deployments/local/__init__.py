"""Where a deployment that the launcher runs on this machine has its files and its ports."""
