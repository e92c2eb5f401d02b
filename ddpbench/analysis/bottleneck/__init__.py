"""Which limit a run hit."""
