"""The cache of files: where it is, how a file gets into it, and how it is downloaded.

`root` says where; `load` and `cached_download` are the two ways in. Both take a lock of the file's
own (`lock`), let it be written into a folder beside its place, and rename it when it is whole
(`place`). The bytes come by `transfer`, from a file or by `http`, and go through a `body`.
"""
