"""What stands still or fails, and how that is noticed: policies, event loops, engines that are probed."""
