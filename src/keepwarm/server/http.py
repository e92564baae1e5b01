"""HTTP as uvicorn reads it with httptools, and a limit to what comes before a body: httptools sets
none. Event loop."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 1 << 16


class BoundedHttp(HttpToolsProtocol):
    """One connection. Ends it when a request line with its headers does not end."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_bytes = 0
        self._is_in_head = True

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        is_too_large = self._is_in_head and self._head_bytes > MAX_HEAD_BYTES
        if is_too_large and not self.transport.is_closing():
            self.send_400_response(f"The headers are larger than {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._head_bytes = 0
        super().on_headers_complete()
