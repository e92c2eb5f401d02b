"""Settings that make the computing of a running training faster, and how to switch each on and off between two of its batches."""
