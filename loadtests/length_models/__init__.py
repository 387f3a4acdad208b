"""Models of answer lengths: their data, their training, and how good they are."""
