"""Files that are downloaded or made once, then kept below the dataset root."""

from __future__ import annotations

from fastiter.dataset._download.cached_download import cached_download
from fastiter.dataset._download.load import cache_or_load_file
from fastiter.dataset._download.root import (
    get_dataset_directory,
    get_dataset_root,
    set_dataset_root,
)

__all__ = [
    "cache_or_load_file",
    "cached_download",
    "get_dataset_directory",
    "get_dataset_root",
    "set_dataset_root",
]
