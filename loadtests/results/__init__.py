"""What a run came to: metrics, comparisons, checks, and the folder that it is kept in."""
