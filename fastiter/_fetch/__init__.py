"""Access to datasets, by example, by list of indices, or by column."""
