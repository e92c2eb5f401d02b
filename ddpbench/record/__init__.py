"""Floor 0: the request, measurements and findings of a run. Types and files only; never imports torch."""
