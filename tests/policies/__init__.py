"""Each policy and the catalog, alone."""
