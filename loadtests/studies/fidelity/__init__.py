"""How far the simulator is from real runs."""
