"""What to try next against a bottleneck."""
