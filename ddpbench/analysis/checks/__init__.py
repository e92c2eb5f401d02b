"""Checks of a record: whether its figure can be trusted, and the state of its nodes."""
