"""Model of the data pipeline: the rate of each part, the bottleneck, and why it is one."""
