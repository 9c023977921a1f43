"""Downloads from honest servers, from dishonest ones, and when the network fails."""

from __future__ import annotations

import gzip
import hashlib
import os
import socket
import ssl
import subprocess
import sys
import traceback
import urllib.request
from pathlib import Path

import pytest
from scripted_server import Request, Reset, Script, head, honest, saying, serving

from fastiter import dataset
from fastiter.dataset import cached_download

BODY = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("CHAINER_DATASET_ROOT", str(tmp_path / "root"))
    urllib.request.install_opener(None)  # the next one reads the environment
    return tmp_path / "root"


def files(root: Path) -> set[str]:
    """Names of the files of the cache, but for lock files."""
    return {p.name for p in (root / "_dl_cache").iterdir() if p.suffix != ".lock"}


def name_of(url: str) -> str:
    return hashlib.md5(url.encode()).hexdigest()


def fails(script: Script, root: Path, match: str, requests: int = 1, **arguments) -> OSError:
    """Checks that a download fails as it should, and leaves nothing."""
    with serving(script) as server, pytest.raises(OSError, match=match) as caught:
        cached_download(server.url, **arguments)
    assert files(root) == set()
    assert len(server.requests) == requests
    return caught.value


def downloads(script: Script, at: str = "", body: bytes = BODY, **arguments) -> list[Request]:
    """Checks that a download succeeds, and returns what was requested."""
    with serving(script) as server:
        assert Path(cached_download(server.url + at, **arguments)).read_bytes() == body
        return server.requests


def test_a_file_is_downloaded_once(root):
    with serving(honest(BODY)) as server:
        path = cached_download(server.url)
        assert Path(path).read_bytes() == BODY
        assert cached_download(server.url) == path
        assert len(server.requests) == 1
    assert path == str(root / "_dl_cache" / name_of(server.url))
    assert files(root) == {name_of(server.url)}


def test_others_may_read_it_as_far_as_the_umask_says():
    old = os.umask(0o027)
    try:
        with serving(honest(BODY)) as server:
            assert os.stat(cached_download(server.url)).st_mode & 0o777 == 0o640
    finally:
        os.umask(old)


def test_neither_url_nor_headers_name_the_file(root):
    with serving(honest(BODY, Content_Disposition='attachment; filename="../../taken"')) as server:
        url = server.url + "../../%2e%2e/etc/x?y=/../z"
        assert Path(cached_download(url)).name == name_of(url)
    assert files(root) == {name_of(url)}
    assert os.listdir(root) == ["_dl_cache"]


@pytest.mark.parametrize(
    ("reply", "body"),
    [
        (head(Content_Length=0), b""),
        (head(Content_Length=1) + b"x", b"x"),
        (head() + BODY, BODY),  # ends with the connection
        (head(Transfer_Encoding="chunked") + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY), BODY),
    ],
    ids=["empty", "small", "closed", "chunked"],
)
def test_bodies_of_every_kind(reply, body):
    downloads(saying(reply), body=body)


def test_an_encoded_body_is_kept_as_it_was_sent():
    body = gzip.compress(BODY)
    (request,) = downloads(honest(body, Content_Encoding="gzip"), body=body)
    assert request.headers["accept-encoding"] == "identity"


def test_local_files(root, tmp_path):
    source = tmp_path / "a b%.bin"
    source.write_bytes(BODY)
    for url in (source.as_uri(), source.as_uri().replace("file://", "file://localhost")):
        path = cached_download(url, sha256=SHA256)
        assert Path(path).read_bytes() == BODY
    source.unlink()
    assert cached_download(url) == path


@pytest.mark.parametrize("name", ["a?b", "a?", "a%3Fb?c"])
def test_local_files_with_a_question_mark(tmp_path, name):
    (tmp_path / "a").write_bytes(b"another file")
    (tmp_path / name.replace("%3F", "?")).write_bytes(BODY)
    assert Path(cached_download(f"file://{tmp_path}/{name}")).read_bytes() == BODY


def test_local_files_that_are_none(root, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, match in [("pipe", "named pipe"), ("", "Is a directory"), ("none", "No such")]:
        with pytest.raises(OSError, match=match):
            cached_download((tmp_path / name).as_uri())
    assert files(root) == set()


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"url": "ftp://host/x"}, ValueError, "http://, https:// or file://"),
        ({"url": "/etc/passwd"}, ValueError, "http://, https:// or file://"),
        ({"url": "http:///x"}, ValueError, "no host"),
        ({"url": "http://host:x/"}, ValueError, "[Pp]ort"),
        ({"url": "file://elsewhere/x"}, ValueError, "elsewhere"),
        ({"url": b"http://127.0.0.1:1/"}, TypeError, "bytes"),
        ({"sha256": "12"}, ValueError, "sha256"),
    ],
)
def test_wrong_arguments(root, arguments, error, match):
    with pytest.raises(error, match=match):
        cached_download(**{"url": "http://127.0.0.1:1/", **arguments})
    assert not root.exists()


def test_a_plain_install_is_enough():
    """Only the standard library, and what fastiter requires, is imported for a download."""
    code = (
        "import sys, fastiter.dataset; before = set(sys.modules)\n"
        "fastiter.dataset.cached_download(sys.argv[1])\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(new - sys.stdlib_module_names - {'fastiter'})"
    )
    with serving(honest(BODY)) as server:
        command = [sys.executable, "-c", code, server.url]
        run = subprocess.run(command, capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("set()\n", "")


# Checksums


def test_a_checksum_is_checked(root):
    fails(honest(BODY), root, f"SHA-256 is {SHA256}", sha256="0" * 64)
    downloads(honest(BODY), sha256=SHA256.upper())


def test_a_cached_file_with_another_checksum_is_replaced(root):
    with serving(honest(BODY)) as server:
        path = Path(cached_download(server.url))
        path.write_bytes(b"damaged")
        assert cached_download(server.url) == str(path)  # only checked if sha256 is given
        assert cached_download(server.url, sha256=SHA256) == str(path)
        assert path.read_bytes() == BODY
        assert len(server.requests) == 2


# Answers that are none


FAILURES = ["204 No Content", "206 Partial Content", "304 Not Modified", "404 Not Found", "503 No"]
ELSEWHERE = ["file:///etc/hostname", "data:,x"]


@pytest.mark.parametrize(
    ("reply", "match", "kind"),
    [
        *(
            (head(status, Content_Length=0), status.replace(" ", ".*"), OSError)
            for status in FAILURES
        ),
        *((head(Content_Length=n) + BODY, n, OSError) for n in ("many", "5, 5")),
        *((head("301 Moved", Location=to), "301", OSError) for to in ELSEWHERE),
        (b"220 mail ready\r\n", "220 mail", OSError),
        (b"", "closed connection without response", ConnectionError),
        (head(Content_Length=9) + b"four", "4 bytes re(ceived of 9|ad, 5 more)", ConnectionError),
        (head(Transfer_Encoding="chunked") + b"ff\r\nonly this", "IncompleteRead", ConnectionError),
    ],
    ids=lambda value: str(value)[:40],
)
def test_answers_that_are_no_file(root, reply, match, kind):
    error = fails(saying(reply), root, match)
    assert isinstance(error, kind) and isinstance(error, ConnectionError) == (kind is not OSError)


def test_redirections_without_an_end(root):
    script = saying(head("307 Again", Location="/", Content_Length=0))
    fails(script, root, "infinite loop", requests=5)


def test_headers_without_an_end(root):
    def script(request: Request):
        yield b"HTTP/1.1 200 OK\r\nX: "
        while not request.server.ended.is_set():
            yield b"x" * 10000

    fails(script, root, "header")


# Redirections


def test_redirections_are_followed(root):
    def script(request: Request):
        if request.target == "/end":
            yield head(Content_Length=len(BODY)) + BODY
        else:
            there = {"/": "next", "/next": "/third", "/third": request.server.url + "end"}
            yield head("302 Found", Location=there[request.target], Content_Length=4) + b"body"

    targets = [request.target for request in downloads(script)]
    assert targets == ["/", "/next", "/third", "/end"]


@pytest.mark.parametrize("sent", ["/grüße 1.bin", "/gr%C3%BC%C3%9Fe%201.bin"])
def test_a_redirection_need_not_be_quoted(sent):
    def script(request: Request):
        if request.target == "/":
            yield f"HTTP/1.1 302 Found\r\nLocation: {sent}\r\n\r\n".encode()
        else:
            yield head(Content_Length=len(BODY)) + BODY

    targets = [request.target for request in downloads(script)]
    assert targets == ["/", "/gr%C3%BC%C3%9Fe%201.bin"]


# Time


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [b"", b"HTTP/1.1 200 OK\r\nX", head(Content_Length=9), head(Content_Length=9) + b"body"],
)
def test_a_silent_server_is_given_up(root, sent):
    socket.setdefaulttimeout(0.2)
    try:
        error = fails(saying(sent, and_waiting=True), root, "no byte for 0.2 seconds")
    finally:
        socket.setdefaulttimeout(None)
    assert isinstance(error, TimeoutError)


@pytest.mark.slow
def test_a_slow_server_is_waited_for():
    def script(request: Request):
        yield head(Content_Length=12)
        for _ in range(12):
            yield b"x"
            request.server.ended.wait(0.15)

    socket.setdefaulttimeout(1.5)
    try:
        downloads(script, body=b"x" * 12)  # 1.8 seconds in all
    finally:
        socket.setdefaulttimeout(None)


# Connections


def test_a_refused_connection(root):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}/"
    with pytest.raises(ConnectionError, match=f"{url}.*refused"):
        cached_download(url)
    assert files(root) == set()


def test_an_unknown_host(root):
    with pytest.raises(OSError, match=r"no\.invalid"):
        cached_download("http://no.invalid/")


def test_a_connection_that_is_reset(root):
    def script(request: Request):
        yield head(Content_Length=len(BODY)) + BODY[:1000]
        raise Reset

    assert isinstance(fails(script, root, "reset by peer|bytes re"), ConnectionError)


# What stands between


def test_the_proxy_of_the_environment_is_used(monkeypatch):
    with serving(honest(BODY)) as server:
        monkeypatch.setenv("http_proxy", server.url.replace("//", "//user:secret@"))
        assert Path(cached_download("http://somewhere.invalid/x")).read_bytes() == BODY
        assert server.requests[0].target == "http://somewhere.invalid/x"
        assert server.requests[0].headers["proxy-authorization"].startswith("Basic ")
        urllib.request.install_opener(None)
        monkeypatch.setenv("http_proxy", "127.0.0.1:1")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert Path(cached_download(server.url + "direct")).read_bytes() == BODY


@pytest.mark.parametrize(
    "proxy", ["http://user:secret@127.0.0.1:1", "http://user:secret@127.0.0.1:x"]
)
def test_the_password_of_a_proxy_is_never_shown(monkeypatch, caplog, proxy):
    caplog.set_level("DEBUG")
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(OSError) as caught:
        cached_download("http://me:hidden@somewhere.invalid/x")
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "secret" not in shown
    assert "me:hidden@" not in "".join(traceback.format_exception_only(caught.value))


@pytest.mark.parametrize(
    "url",
    [
        "http://me:secret@127.0.0.1/x",
        "https://me:secret@127.0.0.1:1/x",
        "http://me:secret@127.0.0.1:x/x",
        "http://me:secret@/x",
        "file://me:secret@host/x",
        "ftp://me:secret@host/x",
    ],
)
def test_the_password_of_a_url_is_never_shown(root, url):
    with pytest.raises((OSError, ValueError)) as caught:
        cached_download(url)
    assert "secret" not in "".join(traceback.format_exception_only(caught.value))


def test_a_user_name_in_a_url_is_named_as_the_reason(root):
    with pytest.raises(OSError, match=r"^http://127.0.0.1:1/x: .* no user names of URLs"):
        cached_download("http://me:secret@127.0.0.1:1/x")


def test_an_untrusted_certificate(root, tmp_path, monkeypatch):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = (
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        f"-subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout {key} -out {certificate}"
    )
    try:
        subprocess.run(command.split(), check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no openssl to make a certificate")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with serving(honest(BODY), tls) as server:
        url = server.url.replace("http://127.0.0.1", "https://localhost")
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            cached_download(url)
        assert files(root) == set()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        monkeypatch.setattr("urllib.request._opener", None)  # it may know other certificates
        assert Path(cached_download(url)).read_bytes() == BODY


def test_nothing_is_written_on_the_screen(capfd):
    downloads(honest(BODY))
    assert capfd.readouterr() == ("", "")


# The root


def test_the_root(monkeypatch, tmp_path):
    monkeypatch.setattr("fastiter.dataset.download._chosen_root", None)
    assert dataset.get_dataset_root() == os.environ["CHAINER_DATASET_ROOT"]
    monkeypatch.setenv("HOME", "/home/user")
    for value in ("", None):
        if value is None:
            monkeypatch.delenv("CHAINER_DATASET_ROOT")
        else:
            monkeypatch.setenv("CHAINER_DATASET_ROOT", value)
        assert dataset.get_dataset_root() == "/home/user/.chainer/dataset"
    dataset.set_dataset_root(tmp_path / "chosen")
    monkeypatch.setenv("CHAINER_DATASET_ROOT", "/elsewhere")
    assert dataset.get_dataset_root() == str(tmp_path / "chosen")
    path = dataset.get_dataset_directory("a/b", create_directory=False)
    assert path == str(tmp_path / "chosen" / "a" / "b")
    assert not os.path.exists(path)
    assert dataset.get_dataset_directory("a/b") == path
    assert dataset.get_dataset_directory("a/b") == path
    assert os.path.isdir(path)
    for wrong in (None, b"/x"):
        with pytest.raises(TypeError):
            dataset.set_dataset_root(wrong)


def test_a_root_that_cannot_be_made(root):
    root.write_bytes(b"")
    for use in (
        lambda: cached_download("http://127.0.0.1:1/"),
        lambda: dataset.get_dataset_directory("x"),
    ):
        with pytest.raises(OSError, match="set_dataset_root"):
            use()
