"""Tokens for language models: windows, packed documents, and batches of them."""

from fastiter.tokens._batches import TokenBatchSampler, flat_batch
from fastiter.tokens._dataset import TokenDataset
from fastiter.tokens._megatron import MegatronDataset
from fastiter.tokens._sources import document_offsets

__all__ = ["MegatronDataset", "TokenBatchSampler", "TokenDataset", "document_offsets", "flat_batch"]
