"""Floor 5: from a request to records."""
