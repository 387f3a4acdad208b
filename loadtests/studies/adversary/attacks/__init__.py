"""What is tried against deployments, each with a module of its own."""
