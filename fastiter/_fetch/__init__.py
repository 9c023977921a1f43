"""Readers of datasets: by example, by list of indices, by column; Arrow, Parquet, shards."""
