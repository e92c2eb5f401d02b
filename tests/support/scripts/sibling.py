"""A module next to the scripts."""
