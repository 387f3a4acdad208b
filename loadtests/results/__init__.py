"""What a run came to: figures, comparisons, checks, and the folder that it is kept in."""
