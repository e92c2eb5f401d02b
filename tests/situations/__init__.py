"""Trainings whose limit is known, because it was made on purpose."""
