"""What every implementation of a contract keeps, whoever wrote it."""
