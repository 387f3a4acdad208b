"""What a gateway counts and measures."""
