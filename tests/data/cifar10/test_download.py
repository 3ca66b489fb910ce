"""Downloads from servers on this machine that are well, dead or slow."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from vqlab.data.cifar10 import download as download_module
from vqlab.data.cifar10.arrays import SourceError
from vqlab.data.cifar10.download import download

URLOPEN = download_module.urllib.request.urlopen


@pytest.fixture(autouse=True)
def short_waits(no_network: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module.urllib.request, "urlopen", URLOPEN)
    monkeypatch.setattr(download_module, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(download_module, "STALL_SECONDS", 0.5)
    monkeypatch.setenv("no_proxy", "*")


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that takes one connection, reads the request and leaves the rest to `answer`."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def work() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                with suppress(OSError):  # the client hangs up, as it should
                    answer(connection)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/file"
        thread.join(5)
        assert not thread.is_alive()


def head(length: int) -> bytes:
    return f"HTTP/1.0 200 OK\r\nContent-Length: {length}\r\n\r\n".encode()


def test_a_file_arrives_whole(tmp_path: Path) -> None:
    content = bytes(range(256)) * 4000
    with server(lambda connection: connection.sendall(head(len(content)) + content)) as url:
        download(url, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == content


def test_no_such_page(tmp_path: Path) -> None:
    answer = b"HTTP/1.0 404 Not Found\r\n\r\n"
    with server(lambda connection: connection.sendall(answer)) as url, pytest.raises(SourceError, match="404"):
        download(url, tmp_path / "file")


def test_nobody_listens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(SourceError, match="refused"):
        download(f"http://127.0.0.1:{port}/file", tmp_path / "file")


def test_a_name_look_up_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module.urllib.request, "urlopen", lambda url, timeout: time.sleep(3))
    start = time.monotonic()
    with pytest.raises(SourceError, match="no answer within"):
        download("http://nowhere.invalid/file", tmp_path / "file")
    assert time.monotonic() - start < 2


def test_a_server_that_accepts_and_says_nothing(tmp_path: Path) -> None:
    start = time.monotonic()
    with server(lambda connection: time.sleep(0.8)) as url, pytest.raises(SourceError, match=r"no answer|timed out"):
        download(url, tmp_path / "file")
    assert time.monotonic() - start < 4


def test_a_server_that_stops_in_the_middle(tmp_path: Path) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(head(1000) + b"x" * 100)
        time.sleep(0.8)

    with server(answer) as url, pytest.raises(SourceError, match="timed out"):
        download(url, tmp_path / "file")


def test_a_server_that_only_trickles(tmp_path: Path) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(head(100_000_000))
        while True:
            connection.sendall(b"x")
            time.sleep(0.05)

    with server(answer) as url, pytest.raises(SourceError, match="too slow"):
        download(url, tmp_path / "file")
