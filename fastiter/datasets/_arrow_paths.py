"""Files that a source names: paths, patterns, and folders as their writers have left them."""

from __future__ import annotations

import contextlib
import glob
import json
import os
from typing import Any

from fastiter._fetch.file_signs import check_same, sign_of

#: names of Arrow and Parquet files end so
SUFFIXES = (".arrow", ".feather", ".ipc", ".parquet", ".pq")


class Paths(list[str]):
    """Files, by their absolute paths, with the signs that they have when this is made."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__(paths)
        self.signs = [sign_of(path) for path in paths]

    def check(self) -> None:
        """Raise ValueError unless all are the files that they were."""
        for path, sign in zip(self, self.signs, strict=True):
            check_same(path, sign)


def checked_paths(source: Any) -> Paths:
    """The files that paths, patterns and folders name; FileNotFoundError if one names none, and
    ValueError if two name the same file, or a folder is more than one table."""
    given = [source] if isinstance(source, (str, bytes, os.PathLike)) else source
    paths: list[str] = []
    for path in given:
        if not isinstance(path, (str, bytes, os.PathLike)):
            raise TypeError(
                f"source must be a table, or paths of files, not a list with {path!r:.80}"
            )
        text = os.fsdecode(path)
        found = [text] if os.path.exists(text) else sorted(glob.glob(text, recursive=True))
        if os.path.isdir(text):
            found = _files_in(text)
        if not found and os.path.isdir(text):
            raise FileNotFoundError(
                f"the folder {text!r} has no file whose name ends with {', '.join(SUFFIXES)}: name "
                "the files, or give a list or a pattern of them"
            )
        if not found:
            raise FileNotFoundError(
                f"there is no file or folder {text!r}, and no file matches it as a pattern: a str "
                "is the path of a Parquet or Arrow IPC file, of a folder of these, or a pattern"
            )
        paths += [os.path.abspath(file) for file in found]
    if not paths:
        raise ValueError("source is an empty list of paths")
    check_once(paths)
    return Paths(paths)


def check_once(paths: list[str]) -> None:
    """Raise ValueError if a file is named twice."""
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            raise ValueError(f"{path} is named twice by the paths and patterns: name a file once")
        seen.add(path)


def _files_in(folder: str) -> list[str]:
    """The files of a folder: the files that Hugging Face's ``save_to_disk`` lists, or else all with
    these endings, also in folders below. Names that begin with "." or "_" are left out."""
    saved = _json(os.path.join(folder, "state.json")).get("_data_files")
    if isinstance(saved, list):
        return _saved_files(folder, saved)
    splits = _json(os.path.join(folder, "dataset_dict.json")).get("splits")
    if isinstance(splits, list) and splits:
        raise ValueError(
            f"the folder {folder!r} is a datasets.DatasetDict with the splits {splits!r:.200}: "
            f"name the folder of one, such as {os.path.join(folder, str(splits[0]))!r}"
        )
    files: list[str] = []
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name.startswith((".", "_")) or (os.path.islink(path) and os.path.isdir(path)):
            continue
        if os.path.isdir(path):
            inside = _files_in(path)
            key, is_partition, _ = name.partition("=")
            if inside and is_partition:
                raise ValueError(
                    f"the folder {folder!r} is partitioned: the values of column {key!r} stand in "
                    f"names of folders, such as {name!r}, and not in the files. Pass "
                    f"pyarrow.dataset.dataset({folder!r}, partitioning='hive').to_table(), or "
                    "leave the column out by a pattern such as "
                    f"{os.path.join(folder, '**', '*' + os.path.splitext(inside[0])[1])!r}"
                )
            files += inside
        elif name.endswith(SUFFIXES):
            files.append(path)
    return files


def _saved_files(folder: str, saved: list[Any]) -> list[str]:
    """The files that ``state.json`` names, in its order."""
    try:
        files = [os.path.join(folder, each["filename"]) for each in saved]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder}/state.json cannot be read: {error!r}") from error
    for file in files:
        if not os.path.isfile(file):
            raise FileNotFoundError(f"{folder}/state.json names {file}, which is not there")
    if not files:
        raise ValueError(f"the dataset that was saved in {folder!r} has no files, and so no rows")
    return files


def _json(path: str) -> dict[str, Any]:
    """Content of a JSON file; empty if there is no such file."""
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        if isinstance(found := json.load(file), dict):
            return found
    return {}
