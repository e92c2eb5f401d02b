"""The scale experiment: what is lost between one rank and all of them, measured on a ladder of ranks within one launch."""
