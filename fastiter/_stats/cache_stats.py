"""Counts of a cache of examples."""

from __future__ import annotations

from typing import NamedTuple

from fastiter._fetch.cache_table import CacheTable


class CacheStats(NamedTuple):
    """Counts of a cache, summed over all processes that used it since it was made; of a file, since
    it was opened while no process had it open."""

    rows: int
    """Rows that are stored."""
    length: int
    """Rows of the dataset."""
    bytes: int
    """Bytes that are in use, index included."""
    lost: int
    """Bytes of these that hold no row: of processes that were killed while they stored one. Rows
    that are just being stored count, too."""
    limit: int
    """Bytes that may be in use."""
    hits: int
    """Fetches that were answered from the cache."""
    misses: int
    """Fetches that called the dataset: rows that were stored then, `failed` and `uncached`."""
    failed: int
    """Fetches in which the dataset raised."""
    uncached: int
    """Fetches whose example was returned and not stored."""
    damaged: int
    """Rows of a file that were found damaged, and were emptied."""
    full: str
    """``"memory"`` or ``"disk"`` if the cache does not fill any more, else ``""``."""
    fetch_seconds: float
    """Seconds that the dataset took for the misses."""

    @classmethod
    def of(cls, table: CacheTable, length: int, place: str) -> CacheStats:
        """The counts of a table; ``place``: "memory" or "disk"."""
        counts = table.counts()
        misses = counts.pop("stored") + counts["failed"] + counts["uncached"]
        full = ("", place, "memory", place)[table.full]
        rows = int(table.present().sum())
        return cls(rows, length, limit=table.limit, misses=misses, full=full, **counts)

    @property
    def hit_rate(self) -> float:
        """Part of the fetches that were hits, 0 if there was none."""
        return self.hits / max(1, self.hits + self.misses)

    @property
    def seconds_saved(self) -> float:
        """Seconds that the hits would have taken as misses."""
        return self.hits * self.fetch_seconds / max(1, self.misses)

    def __str__(self) -> str:
        seconds = self.seconds_saved
        saved = f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds:.1f} s"
        return (
            f"{self.rows:,} of {self.length:,} rows, {self.bytes / 1e9:.1f} GB of "
            f"{self.limit / 1e9:.1f} GB, {100 * self.hit_rate:.0f} % hits, {saved} saved"
        )
