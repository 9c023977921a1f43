"""Building blocks of `concat_examples` and the iterators, for direct use."""

from __future__ import annotations

from fastiter._collate.buffers import trim_buffers
from fastiter._collate.concat import pad_stack, stack
from fastiter._workers.shared_object import Shared, share

__all__ = ["Shared", "pad_stack", "share", "stack", "trim_buffers"]
