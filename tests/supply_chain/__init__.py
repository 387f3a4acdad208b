"""What the environment is made of."""
