"""Devices: the meaning of a ``device`` argument, and copies of batches to a GPU by CuPy.

``cupy`` is the only importer of CuPy. ``transfer`` and ``pinned`` (slots that the GPU reads itself)
are imported with the first batch for a GPU.
"""
