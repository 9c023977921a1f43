from typing_extensions import disjoint_base

@disjoint_base
class Buffer:
    """The owner of one buffer of the pool.

    It ends the ``base`` chain of every array that lies in the buffer. When the last of them is
    gone, so is it, and the next result of about that size gets the buffer.
    """

    @property
    def nbytes(self) -> int:
        """Size of the buffer, at least that of the result that it was made for."""

def trim() -> None:
    """Give the memory of all idle buffers back to the system."""

def complaint() -> str:
    """What is wrong with the environment variable that limits the pool; empty if nothing is."""

def idle() -> tuple[int, int]:
    """How many buffers are idle, and their bytes."""

__pyx_capi__: dict[str, object]  # what other compiled modules import
