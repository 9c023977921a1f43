from typing_extensions import disjoint_base

@disjoint_base
class Buffer:
    nbytes: int

def trim_buffers() -> None: ...
def complaint() -> str: ...
def idle() -> tuple[int, int]: ...

__pyx_capi__: dict[str, object]  # what other compiled modules import
