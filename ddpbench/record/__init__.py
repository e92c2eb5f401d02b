"""Floor 0: what a run was asked, what it saw, and what is said about it. Types and files only; never torch."""
