"""Who imports whom, and how the packages are laid out."""
