"""Tokens for language models: windows, packed documents, and batches of them."""

from fastiter.tokens._batches import TokenBatchSampler
from fastiter.tokens._dataset import TokenDataset
from fastiter.tokens._flat import document_offsets, flat_batch
from fastiter.tokens._megatron import MegatronDataset

__all__ = ["MegatronDataset", "TokenBatchSampler", "TokenDataset", "document_offsets", "flat_batch"]
