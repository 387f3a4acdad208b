"""How scenario files are read: strictly, with errors that say where."""
