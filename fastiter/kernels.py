"""What the iterators are built on, for use without them."""

from __future__ import annotations

from fastiter._share import Shared, share

__all__ = ["Shared", "share"]
