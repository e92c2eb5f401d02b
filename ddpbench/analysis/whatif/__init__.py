"""Predict throughput with other settings: the measured state, the scenario, the estimated gain."""
