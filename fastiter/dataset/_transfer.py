"""Transfer of the content of a URL into a new file, by the standard library."""

from __future__ import annotations

import hashlib
import re
import shutil
import socket
import urllib.request
from http.client import HTTPException, IncompleteRead
from typing import IO
from urllib.error import HTTPError
from urllib.parse import unquote_to_bytes

_SILENCE_SECONDS = 20.0


def transfer(url: str, path: str, sha256: str | None) -> None:
    """Write the content of a URL into a new file; raise OSError if it is not complete."""
    request = urllib.request.Request(url, headers={"User-Agent": "fastiter"})
    if request.type == "file":  # a question mark belongs to the name: url2pathname() may cut there
        shutil.copyfile(unquote_to_bytes(request.selector), path)
    else:
        with open(path, "xb") as file:
            _download(request, file)
    found = None if sha256 is None else sha256_of(path)
    if found != sha256:
        raise OSError(
            f"{_redacted(url)}: the content is not the expected one: its SHA-256 is {found}, "
            f"sha256={sha256!r}"
        )


def _download(request: urllib.request.Request, file: IO[bytes]) -> None:
    timeout = socket.getdefaulttimeout() or _SILENCE_SECONDS
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            if response.status != 200:  # urllib takes all of 2xx for a file
                raise OSError(f"the server says {response.status} {response.reason}")
            shutil.copyfileobj(response, file)
            total = response.headers.get("Content-Length")
        # urllib ends in silence when the connection does.
        if total is not None and "Transfer-Encoding" not in response.headers:
            n_received = file.tell()
            if n_received != int(total):
                raise ConnectionError(f"{n_received} bytes received of {total}")
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()
        cause = getattr(error, "reason", error)  # URLError wraps what happened
        kind, text = OSError, str(cause if isinstance(cause, OSError) else error)
        if isinstance(cause, TimeoutError):
            kind, text = TimeoutError, f"no byte for {timeout:g} seconds"
        elif isinstance(cause, (ConnectionError, IncompleteRead)):
            kind = ConnectionError
        elif "@" in request.host and not isinstance(error, HTTPError):
            text = "urllib.request sends no user names of URLs: install an opener that adds them"
        failed = kind(_redacted(f"{request.full_url}: {text}"))
        failed.errno = getattr(cause, "errno", None)
        raise failed from None  # the first error may show the password of a proxy


def sha256_of(path: str) -> str:
    """Compute the SHA-256 of a file, in lower case."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _redacted(text: str) -> str:
    """Return a text without the user names and passwords of URLs, nor of quoted parts of them."""
    return re.sub(r"(//|')[^/\s']*@", r"\1", text)
