"""HTTP servers on the loopback that answer as a script says, be it honest or not."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Request(NamedTuple):
    """A request of a client."""

    number: int  #: counts this server's requests, from 0
    target: str
    headers: dict[str, str]  #: by names in lower case
    server: ScriptedServer


class Reset(Exception):
    """Raised by a script to reset the connection instead of closing it."""


Script = Callable[[Request], Iterator[bytes]]


class ScriptedServer:
    """Answers each request with the parts that ``script(request)`` yields, then hangs up."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.ended = threading.Event()  #: for scripts that have nothing to say any more
        self._script = script
        self._tls = tls
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self.ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        if self._tls is not None:  # the handshake comes with the first byte that is read
            connection = self._tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        with connection, contextlib.suppress(OSError):  # the client may go
            try:
                for part in self._script(self._request(connection)):
                    connection.sendall(part)
            except Reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _request(self, connection: socket.socket) -> Request:
        text = b""
        while not text.endswith(b"\r\n\r\n"):
            part = connection.recv(1 << 16)
            if not part:
                raise OSError("the client has gone")
            text += part
        first, *lines = text.decode("latin-1").strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        with self._lock:
            request = Request(len(self.requests), first.split(" ")[1], headers, self)
            self.requests.append(request)
        return request


@contextlib.contextmanager
def serving(script: Script, tls: ssl.SSLContext | None = None) -> Iterator[ScriptedServer]:
    server = ScriptedServer(script, tls)
    try:
        yield server
    finally:
        server.close()


def head(status: str = "200 OK", **headers: Any) -> bytes:
    """The lines before a body; underscores in names stand for dashes."""
    lines = [f"HTTP/1.1 {status}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "Connection: close", "\r\n"]).encode("latin-1")


def saying(reply: bytes, and_waiting: bool = False) -> Script:
    """A script that gives these bytes, and ends the connection at once or with the server."""

    def script(request: Request) -> Iterator[bytes]:
        yield reply
        if and_waiting:
            request.server.ended.wait()

    return script


def honest(body: bytes, **headers: Any) -> Script:
    """A script that gives a body as it should be."""

    return saying(head(Content_Length=len(body), **headers) + body)
