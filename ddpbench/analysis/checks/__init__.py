"""Checks of a record: whether its figure may be believed, and what surrounded the run."""
