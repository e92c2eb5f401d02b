"""Every sentence about a record, by the code that it words."""
