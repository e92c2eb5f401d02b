"""Floor 4: a job as something to look at: a terminal page, CSV, markdown, JSON, a moving bar. Computes nothing, never imports torch."""
