"""The pages: one module per kind of job, and the sections that they share."""
