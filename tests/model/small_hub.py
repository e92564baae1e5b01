"""A hub of models on a socket of this machine: as much of Hugging Face's HTTP as a download needs.

It serves files in pieces, so that a test can stop it in the middle, and knows who asked for what.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

_COMMIT = "0123456789abcdef0123456789abcdef01234567"
_PIECE = 1 << 14


class Hub:
    """Repositories by name, each a folder."""

    def __init__(self) -> None:
        self.repositories: dict[str, Path] = {}
        self.gated: set[str] = set()
        self.fetched: list[str] = []  # files whose content was asked for
        self.sizes: dict[str, int] = {}  # told instead of the true ones
        self.slow_file: str | None = None  # stops in its middle until `go_on` is set
        self.go_on = threading.Event()
        self.is_in_the_middle = threading.Event()
        self.url = ""


@contextmanager
def small_hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.go_on.set()
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_request(self, *args: object) -> None:
        pass

    def _answer(self) -> None:
        parts = urlsplit(self.path).path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._answer_api("/".join(parts[2:4]), parts[4:])
        elif len(parts) > 4 and parts[2] == "resolve":
            self._answer_file("/".join(parts[:2]), "/".join(parts[4:]))
        else:
            self._refuse(404, "EntryNotFound")

    def _answer_api(self, name: str, rest: list[str]) -> None:
        if name in self.hub.gated:
            self._refuse(403, "GatedRepo")
        elif name not in self.hub.repositories:
            self._refuse(401, "RepoNotFound")
        elif rest[:1] == ["tree"]:
            self._send_json([self._entry(name, file) for file in self._files(name)])
        else:
            siblings = [{"rfilename": file} for file in self._files(name)]
            self._send_json({"id": name, "sha": _COMMIT, "siblings": siblings})

    def _answer_file(self, name: str, file: str) -> None:
        folder = self.hub.repositories.get(name)
        if folder is None or not (folder / file).is_file():
            self._refuse(404, "EntryNotFound")
            return
        content = (folder / file).read_bytes()
        total, start = len(content), 0
        if (asked := self.headers.get("Range")) is not None:
            start = int(asked.removeprefix("bytes=").partition("-")[0])
            content = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{self._digest(folder / file)}"')
        self.send_header("X-Repo-Commit", _COMMIT)
        self.send_header("X-Linked-Size", str(self.hub.sizes.get(file, total)))
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.hub.fetched.append(file)
            self._send_in_pieces(file, content)

    def _send_in_pieces(self, file: str, content: bytes) -> None:
        half = len(content) // 2
        for begin in range(0, len(content), _PIECE):
            if file == self.hub.slow_file and begin >= half and not self.hub.go_on.is_set():
                self.hub.is_in_the_middle.set()
                self.hub.go_on.wait(60)
            try:
                self.wfile.write(content[begin : begin + _PIECE])
            except OSError:  # whoever asked has left
                return

    def _files(self, name: str) -> list[str]:
        folder = self.hub.repositories[name]
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    def _entry(self, name: str, file: str) -> dict[str, object]:
        path = self.hub.repositories[name] / file
        size = self.hub.sizes.get(file, path.stat().st_size)
        return {"type": "file", "path": file, "size": size, "oid": self._digest(path)}

    @staticmethod
    def _digest(path: Path) -> str:
        return hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()

    def _send_json(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
