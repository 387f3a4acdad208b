"""What holds whatever happens, in whatever order."""
