"""The simulator as machine code: which modules, what is made of their sources first, and where the copy is."""
