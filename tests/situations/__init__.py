"""Trainings with a known, intentional bottleneck."""
