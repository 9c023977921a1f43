"""From a URL into a file."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import urllib.parse

from fastiter.dataset._download.body import Body

#: Seconds to wait for a byte where nobody said otherwise.
TIMEOUT = 20.0

_CHUNK = 1 << 20


def checked_url(url: str) -> str:
    """Gives the scheme of a URL that can be fetched; raises ValueError for another."""
    if not isinstance(url, str):
        raise TypeError(f"url must be a str, not {type(url).__name__}")
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("file", "http", "https"):
        raise ValueError(f"the url must begin with http://, https:// or file://, but it is {url!r}")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ValueError(f"{url!r} names the host {parts.netloc!r}: write file:///path")
    elif not parts.hostname or parts.port == 0:  # .port raises ValueError itself for nonsense
        raise ValueError(f"{url!r} names no host or port to connect to")
    return parts.scheme


def checked_timeout(timeout: float | None) -> float | None:
    """Gives the seconds without a byte after which to give up; None for never."""
    if timeout is None:
        timeout = socket.getdefaulttimeout()
        timeout = TIMEOUT if timeout is None else timeout
    if not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds, but is {timeout}")
    return None if timeout == float("inf") else float(timeout)


def fetch(
    url: str,
    path: str,
    *,
    timeout: float | None,
    retries: int,
    sha256: str | None,
    progress: bool,
) -> None:
    """Writes what a URL leads to into a new file, whole, or raises OSError."""
    with contextlib.closing(Body(path, url, sha256, progress)) as body:
        if urllib.parse.urlsplit(url).scheme == "file":
            _copy(url, body)
        else:
            from fastiter.dataset._download.http import download

            download(url, body, timeout=timeout, retries=retries)
        body.check()


def _copy(url: str, body: Body) -> None:
    # Files have no query: a question mark belongs to the name.
    path = urllib.parse.unquote(urllib.parse.urlsplit(url.replace("?", "%3F")).path)
    # Not to be held up by a pipe that nobody writes into.
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", 0) as file:
        before = os.fstat(file.fileno())
        if not stat.S_ISREG(before.st_mode):
            raise OSError(f"{url} is no regular file")
        body.expect(before.st_size)
        while chunk := file.read(_CHUNK):
            body.write(chunk)
        after = os.fstat(file.fileno())
    if body.size != before.st_size or after.st_mtime_ns != before.st_mtime_ns:
        raise OSError(f"{url} has changed while it was copied")
