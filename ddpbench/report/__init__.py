"""Floor 4: shows a job as terminal page, CSV, markdown, JSON or progress bar. Computes nothing, never imports torch."""
