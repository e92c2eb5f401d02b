"""What the ranks of a script exchange while it runs: their steps, and that they stand still, fail or end; and the record of all."""
