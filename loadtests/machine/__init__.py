"""The machine that a study runs on: deployments, cores, and who else was busy."""
