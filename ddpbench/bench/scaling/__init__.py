"""What is lost between one rank and all of them: a ladder of ranks and arms on the whole world, in one launch."""
