"""Datasets: columns put together, parts of datasets, files.

Constructors check their arguments at once: TypeError or ValueError names the argument, what was
given, and what is expected.
"""

from __future__ import annotations

from fastiter._stats.cache_stats import CacheStats
from fastiter.datasets.arrow_dataset import ArrowDataset
from fastiter.datasets.cached_dataset import CachedDataset
from fastiter.datasets.concatenated_dataset import ConcatenatedDataset
from fastiter.datasets.dict_dataset import DictDataset
from fastiter.datasets.frozen_dataset import FrozenDataset
from fastiter.datasets.image_dataset import ImageDataset
from fastiter.datasets.labeled_image_dataset import LabeledImageDataset
from fastiter.datasets.labeled_zipped_image_dataset import LabeledZippedImageDataset
from fastiter.datasets.multi_zipped_image_dataset import MultiZippedImageDataset
from fastiter.datasets.npy_dataset import NpyDataset
from fastiter.datasets.pickle_dataset import PickleDataset, open_pickle_dataset
from fastiter.datasets.pickle_dataset_writer import PickleDatasetWriter, open_pickle_dataset_writer
from fastiter.datasets.split import (
    get_cross_validation_datasets,
    get_cross_validation_datasets_random,
    split_dataset,
    split_dataset_n,
    split_dataset_n_random,
    split_dataset_random,
)
from fastiter.datasets.stream_dataset import StreamDataset
from fastiter.datasets.sub_dataset import SubDataset
from fastiter.datasets.text_dataset import TextDataset
from fastiter.datasets.transform_dataset import TransformDataset
from fastiter.datasets.tuple_dataset import TupleDataset
from fastiter.datasets.zipped_image_dataset import ZippedImageDataset

__all__ = [
    "ArrowDataset",
    "CacheStats",
    "CachedDataset",
    "ConcatenatedDataset",
    "DictDataset",
    "FrozenDataset",
    "ImageDataset",
    "LabeledImageDataset",
    "LabeledZippedImageDataset",
    "MultiZippedImageDataset",
    "NpyDataset",
    "PickleDataset",
    "PickleDatasetWriter",
    "StreamDataset",
    "SubDataset",
    "TextDataset",
    "TransformDataset",
    "TupleDataset",
    "ZippedImageDataset",
    "get_cross_validation_datasets",
    "get_cross_validation_datasets_random",
    "open_pickle_dataset",
    "open_pickle_dataset_writer",
    "split_dataset",
    "split_dataset_n",
    "split_dataset_n_random",
    "split_dataset_random",
]
