"""What one decision, one request or one simulated second costs."""
