"""C declarations for the Cython modules: csrc, NumPy's C API, Python objects, and statuses."""
