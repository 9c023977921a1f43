"""Images for training: decoded, cropped, resized and laid out in one pass, in the workers.

Needs Pillow, and is fastest with simplejpeg: ``pip install pillow simplejpeg``.
"""

from __future__ import annotations

from fastiter.images._datasets import ImageFiles, ImageFolder, decode
from fastiter.images._transforms import RandomResizedCrop, Resize, ResizeCenterCrop

__all__ = ["ImageFiles", "ImageFolder", "RandomResizedCrop", "Resize", "ResizeCenterCrop", "decode"]
