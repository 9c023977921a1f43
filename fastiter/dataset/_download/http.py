"""Downloads over HTTP, by urllib3: whole bodies, or an OSError that says why not."""

from __future__ import annotations

import contextlib
import email.utils
import itertools
import logging
import random
import re
import ssl
import string
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator

import urllib3
from urllib3 import exceptions

from fastiter.dataset._download.body import Body
from fastiter.dataset._download.transfer import checked_url

_log = logging.getLogger("fastiter")

_REDIRECTS = 10
_CHUNK = 1 << 16


class _Broken(Exception):
    """What another try may mend."""


def download(url: str, body: Body, *, timeout: float | None, retries: int) -> None:
    """Writes what the server gives into the body, and tries again after a broken connection."""
    parts = _Parts(url, body, timeout)
    for wait in itertools.chain(waits(retries), [None]):
        try:
            parts.get_rest()
            return
        except _Broken as broken:
            if wait is None:
                text = f"{broken}; retries={retries} are used up"
                raise ConnectionError(text) from broken.__cause__
            _log.info("Trying again: %s", broken)
        time.sleep(wait)


def waits(retries: int) -> Iterator[float]:
    """Gives the seconds to wait before each retry: twice as long each time, at most 2 in all."""
    # Not at the same moment as others; by a generator of its own, since the user's must not move.
    longest = min(2, retries) / 2 * random.SystemRandom().uniform(0.5, 1)
    for left in range(retries - 1, -1, -1):  # there may be more than memory has room for
        yield longest * 0.5 ** min(left, 1000)


class _Parts:
    """A file that arrives in as many answers as it takes.

    Parameters
    ----------
    url : str
    body : Body
        What has arrived so far.
    timeout : float or None
        Seconds without a byte.
    """

    def __init__(self, url: str, body: Body, timeout: float | None) -> None:
        self._url = url
        self._body = body
        self._timeout = timeout
        self._validator: str | None = None  # by which the server knows what we have a part of
        self._total: int | None = None

    def get_rest(self) -> None:
        """Asks once, and writes what arrives."""
        if self._validator is None and self._body.size:
            self._body.restart()
        headers = {"User-Agent": "fastiter", "Accept-Encoding": "identity"}
        if self._body.size and self._validator is not None:
            headers |= {"Range": f"bytes={self._body.size}-", "If-Range": self._validator}
        with self._errors(), _answer(self._url, headers, self._timeout) as answer:
            if answer.status == 206 and "Range" in headers:
                self._check_range(answer)
            elif answer.status == 200:
                self._start(answer)
            else:
                raise OSError(f"{self._url}: the server says {answer.status} {answer.reason}")
            # As it was sent: a Content-Encoding undone would not be the file that has the hash.
            while chunk := answer.read(_CHUNK, decode_content=False):
                self._body.write(chunk)
        if self._total not in (None, self._body.size):
            raise _Broken(f"{self._url}: {self._body.size} bytes came instead of {self._total}")

    def _start(self, answer: urllib3.BaseHTTPResponse) -> None:
        if self._body.size:
            self._body.restart()
        length = answer.headers.get("Content-Length")
        if "Transfer-Encoding" in answer.headers:
            length = None
        if length is not None and not re.fullmatch(r"\d+", length, re.ASCII):
            raise OSError(f"{self._url}: the server gave the length {length!r}")
        self._total = None if length is None else int(length)
        self._body.expect(self._total)
        self._validator = _strong_validator(answer)

    def _check_range(self, answer: urllib3.BaseHTTPResponse) -> None:
        """Raises OSError if a part is not the rest of what is there."""
        given = answer.headers.get("Content-Range", "")
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", given, re.ASCII)
        numbers = [int(number) for number in found.groups()] if found else []
        total = numbers[2] if numbers and self._total is None else self._total
        tag = answer.headers.get("ETag")
        if numbers != [self._body.size, (total or 0) - 1, total]:
            rest = f"bytes {self._body.size}-{'...' if total is None else f'{total - 1}/{total}'}"
            raise OSError(f"{self._url}: asked for {rest}, the server gave {given or 'no range'}")
        had = self._validator or ""
        if tag is not None and had.startswith('"') and tag != had:
            raise OSError(f"{self._url}: the server gave the rest of another file ({tag})")
        self._total = total
        self._body.expect(total)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turns urllib3's errors into what stands for another try, or into a user's."""
        try:
            yield
        except exceptions.HTTPError as error:
            cause = error.original_error if isinstance(error, exceptions.ProxyError) else error
            if _is_broken(cause):
                raise _Broken(f"{self._url}: {error} ({self._progress()})") from error
            if isinstance(cause, (exceptions.TimeoutError, TimeoutError)):
                reason = f"no byte for {self._timeout} seconds ({self._progress()})"
                raise TimeoutError(f"{self._url}: {reason}") from error
            raise OSError(f"{self._url}: {error}") from error

    def _progress(self) -> str:
        total = "" if self._total is None else f" of {self._total}"
        return f"{self._body.size}{total} bytes received"


def _is_broken(error: Exception) -> bool:
    """Whether a connection failed or broke, and not for a reason that will still be there."""
    if isinstance(error, exceptions.SSLError):
        return any(isinstance(cause, ssl.SSLEOFError) for cause in error.args)
    # NewConnectionError is a kind of TimeoutError in urllib3.
    return isinstance(
        error, (exceptions.NewConnectionError, exceptions.ProtocolError, ConnectionError)
    )


@contextlib.contextmanager
def _answer(
    url: str, headers: dict[str, str], timeout: float | None
) -> Iterator[urllib3.BaseHTTPResponse]:
    """Gives the answer at the end of all redirections, its body not read yet."""
    for _ in range(_REDIRECTS + 1):
        with _manager(url) as manager:
            answer = manager.urlopen(
                "GET",
                url,
                headers=headers,
                timeout=urllib3.Timeout(connect=timeout, read=timeout),
                retries=False,
                redirect=False,  # urllib3 would read the whole body of each
                preload_content=False,
            )
            try:
                target = answer.get_redirect_location()
                if not target:
                    yield answer
                    return
                url = _redirected(url, target)
            finally:
                answer.close()
    raise OSError(f"more than {_REDIRECTS} redirections; the last one leads to {url}")


def _redirected(url: str, target: str) -> str:
    # Many servers send UTF-8 as it is, of which the HTTP client makes Latin-1.
    quoted = urllib.parse.quote(target, string.punctuation, encoding="latin-1")
    new = urllib.parse.urljoin(url, quoted)
    try:
        is_http = checked_url(new) != "file"
    except ValueError:
        is_http = False
    if not is_http:
        raise OSError(f"{url} redirects to {new!r}: only http and https are followed")
    return new


def _manager(url: str) -> urllib3.PoolManager:
    """Makes connections to a URL, through the proxy that the environment names."""
    parts = urllib.parse.urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or urllib.request.proxy_bypass(parts.netloc):
        return urllib3.PoolManager()
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    auth = urllib3.util.parse_url(proxy).auth
    headers = urllib3.make_headers(proxy_basic_auth=urllib.parse.unquote(auth)) if auth else None
    return urllib3.ProxyManager(proxy, proxy_headers=headers)


def _strong_validator(answer: urllib3.BaseHTTPResponse) -> str | None:
    """What proves that a part and its rest are of the same bytes (RFC 9110, 13.1.5)."""
    tag = answer.headers.get("ETag")
    if tag is not None:
        return tag if tag.startswith('"') else None
    changed, now = answer.headers.get("Last-Modified"), answer.headers.get("Date")
    if changed is None or now is None:
        return None
    try:
        age = email.utils.parsedate_to_datetime(now) - email.utils.parsedate_to_datetime(changed)
    except (TypeError, ValueError):
        return None
    return changed if age.total_seconds() >= 60 else None
