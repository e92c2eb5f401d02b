"""Floor 5: from a request to records. Each experiment reads as a recipe."""
