"""A deployment that the launcher runs has its engines replaced, and goes back where users suffer."""
