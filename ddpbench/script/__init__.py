"""Floor 6: the user's own training script, observed while it runs. It changes nothing in the script."""
