"""Transfer of the content of a URL into a new file.

pooch's downloader makes the HTTP requests. This module adds retries that request only the missing
bytes, checks of what servers answer, and errors that say what happened.
"""

from __future__ import annotations

import email.utils
import logging
import os
import re
import shutil
import ssl
import stat
import time
import urllib.parse
from io import FileIO
from typing import Any, NoReturn

from fastiter._util.start_default import default_method_kept

try:
    import pooch
    import requests
    from requests.exceptions import ChunkedEncodingError
    from urllib3.exceptions import HTTPError, ReadTimeoutError
except ImportError as error:
    raise ImportError(
        f"cached_download needs pooch: pip install 'fastiter-loader[download]' ({error})"
    ) from error

_log = logging.getLogger("fastiter")

_CHUNK_BYTES = 1 << 14  # a broken connection loses the last chunk


def transfer(
    url: str, path: str, timeout: float, retries: int, sha256: str | None, progress: bool
) -> None:
    """Write the content of a URL into a new file; raise OSError if it is not complete."""
    with _Content(url, path, progress) as content:
        if urllib.parse.urlsplit(url).scheme == "file":
            content.copy()
        else:
            content.download(None if timeout == float("inf") else timeout, retries)
    found = None if sha256 is None else sha256_of(path)
    if found != sha256:
        raise OSError(
            f"{_redacted(url)}: the content is not the expected one: its SHA-256 is {found}, "
            f"sha256={sha256!r}"
        )


def sha256_of(path: str) -> str:
    """Compute the SHA-256 of a file, in lower case."""
    return str(pooch.file_hash(path, "sha256"))


class _Content(FileIO):
    """A new file with the content of a URL, as far as it has been received."""

    def __init__(self, url: str, path: str, progress: bool) -> None:
        from tqdm import tqdm

        name = os.path.basename(urllib.parse.urlsplit(url).path.rstrip("/")) or url
        with default_method_kept():
            self._bar = tqdm(
                desc=name, disable=not progress, unit="B", unit_scale=True, unit_divisor=1024
            )
        self._url = url
        self._total: int | None = None  # bytes of the content, if the server gives them
        self._validator: str | None = None  # identifies the content to the server
        self._response: Any = None
        super().__init__(path, "x")

    def write(self, chunk: Any) -> int:
        """Write a whole chunk; pooch calls it."""
        start = self.tell()
        try:
            while self.tell() < start + len(chunk):
                super().write(chunk[self.tell() - start :])
        except OSError as error:
            reason = f"{error.strerror}, after {start} bytes of {_redacted(self._url)}"
            raise OSError(error.errno, reason, self.name) from None
        self._bar.update(len(chunk))
        return len(chunk)

    def close(self) -> None:
        self._bar.close()
        super().close()

    def copy(self) -> None:
        """Copy a local file."""
        # Files have no query: a question mark belongs to the name.
        path = urllib.parse.unquote(urllib.parse.urlsplit(self._url.replace("?", "%3F")).path)
        state = os.stat(path)
        if not stat.S_ISREG(state.st_mode):  # a pipe would block
            self._fail("not a regular file")
        self._start(state.st_size)
        with open(path, "rb") as file:
            shutil.copyfileobj(file, self, 1 << 20)
        if self.tell() != self._total:
            self._fail("the file has changed while it was copied")

    def download(self, timeout: float | None, retries: int) -> None:
        """Request the content, and request the rest again after a broken connection."""
        for left in range(retries, -1, -1):
            try:
                self._request(timeout)
                return
            except ConnectionError as error:
                if left == 0:
                    raise ConnectionError(f"{error}; retries={retries} are used up") from None
                _log.info("Trying again: %s", error)
            time.sleep(min(0.5, 2 / retries))

    def _request(self, timeout: float | None) -> None:
        headers = {"User-Agent": "fastiter", "Accept-Encoding": "identity"}
        if self.tell() and self._total is not None and self._validator is not None:
            headers |= {"Range": f"bytes={self.tell()}-", "If-Range": self._validator}
        paths = ssl.get_default_verify_paths()  # the system's; requests would use its own
        get = pooch.HTTPDownloader(
            chunk_size=_CHUNK_BYTES,
            timeout=timeout,
            headers=headers,
            verify=paths.cafile or paths.capath or True,
            hooks={"response": self._check},
        )
        try:
            get(self._url, self, None)
            if self._total not in (None, self.tell()):
                raise requests.ConnectionError(f"more bytes came than the {self._total} announced")
        except (requests.RequestException, HTTPError, ValueError) as error:
            of_total = "" if self._total is None else f" of {self._total}"
            text = f"{error} ({self.tell()}{of_total} bytes received)"
            # requests raises a timeout within a body as a ConnectionError.
            cause = error.args[0] if error.args else None
            if isinstance(error, requests.Timeout) or isinstance(cause, ReadTimeoutError):
                self._fail(f"no byte for {timeout} seconds: {text}", TimeoutError)
            is_broken = isinstance(error, (requests.ConnectionError, ChunkedEncodingError))
            self._fail(text, ConnectionError if is_broken else OSError)
        finally:
            if self._response is not None:
                self._response.close()

    def _check(self, response: requests.Response, **_: Any) -> None:
        """Check the headers of a response; requests calls it before it reads the body."""
        if response.is_redirect:
            response.close()  # requests would read its body, which may never end
            return
        self._response = response
        headers = response.headers
        if response.status_code == 206 and "Range" in response.request.headers:
            part = f"bytes {self.tell()}-{(self._total or 0) - 1}/{self._total}"
            given, tag = headers.get("Content-Range"), headers.get("ETag", self._validator)
            if (given, tag) != (part, self._validator):
                self._fail(f"asked for {part} of {self._validator}, received {given} of {tag}")
        elif response.status_code == 200:
            length = None if "Transfer-Encoding" in headers else headers.get("Content-Length")
            self._start(None if length is None else int(length))
            self._validator = _strong_validator(headers)
        else:
            self._fail(f"the server says {response.status_code} {response.reason}")
        # Otherwise requests would decompress the body, but its bytes are what sha256 is about.
        response.raw.headers.pop("Content-Encoding", None)

    def _start(self, total: int | None) -> None:
        """Begin the file, from the start if a part of it has been received."""
        self.seek(0)
        self.truncate()
        self._total = total
        self._bar.reset(total)

    def _fail(self, reason: str, kind: type[Exception] = OSError) -> NoReturn:
        # Without the error of requests, which may show the password of a proxy.
        raise kind(_redacted(f"{self._url}: {reason}")) from None


def _redacted(text: str) -> str:
    """Return a text without the user names and passwords of URLs."""
    return re.sub(r"//[^/\s]*@", "//", text)


def _strong_validator(headers: Any) -> str | None:
    """Return what proves that two responses are of the same bytes (RFC 9110, 13.1.5)."""
    tag, changed = headers.get("ETag"), headers.get("Last-Modified")
    if tag is not None:
        return tag if tag.startswith('"') else None
    try:
        date, time_ = headers["Date"], email.utils.parsedate_to_datetime
        return changed if (time_(date) - time_(changed)).total_seconds() >= 60 else None
    except (KeyError, TypeError, ValueError):
        return None
