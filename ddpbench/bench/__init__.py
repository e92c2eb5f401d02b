"""Floor 3: from a request to records. Each experiment reads as a recipe."""
