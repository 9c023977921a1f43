import threading
from typing import Any

from fastiter._ring.arena import Arena
from fastiter._ring.schema import Schema

this_thread: threading.local

def fork_begins() -> None: ...
def fork_ended() -> None: ...
def begin_anew() -> None: ...

class Lease:
    arena: Arena
    schema: Schema | None
    rows: int
    places: list[int] | None
    flags: int
    is_copied: bool
    def load(self, row: int, kind: int, copy: bool) -> Any: ...
