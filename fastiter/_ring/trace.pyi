from typing import TypeAlias

from fastiter._ring.parent_ring import ParentRing

Event: TypeAlias = tuple[str, int, int, int, int, int]

def start(ring: ParentRing) -> None:
    """Have the workers record what they do from their next range on, from an empty record.

    Raises
    ------
    MemoryError
        If there is no memory for the records, 1 MiB for each worker.
    """

def stop(ring: ParentRing) -> None: ...
def events(ring: ParentRing, worker: int) -> list[Event]:
    """What a worker has recorded since `start`, the last 32,765 events of it, the oldest first.

    Kinds are fetch, write, finish and wait. Cheap rows that follow one another are one event.
    """
