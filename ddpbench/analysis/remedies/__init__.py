"""Remedies: what to try next against a bottleneck."""
