"""The rank of this process in a distributed program, as its launcher tells it."""

from __future__ import annotations

import os
from typing import Any

from fastiter._util.arguments import checked_int

MOST_RANKS = 1 << 20

#: Where launchers put the rank and the number of ranks; the first pair that is set counts.
_ENVIRONMENT = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPICH, Intel MPI", "PMI_RANK", "PMI_SIZE"),
    ("SLURM", "SLURM_PROCID", "SLURM_NTASKS"),
)


def _checked(rank: Any, count: Any, names: tuple[str, str]) -> tuple[int, int]:
    """Rank and number of ranks, of which both are given."""
    count = checked_int(names[1], count, maximum=MOST_RANKS)
    rank = checked_int(names[0], rank, minimum=0)
    if rank >= count:
        raise ValueError(f"{names[0]} must be below {names[1]}, but is {rank} of {count}")
    return rank, count


def iterator_ranks(
    rank: Any, num_ranks: Any, name_of_count: str = "num_ranks", own: tuple[int, int] | None = None
) -> tuple[int, int]:
    """The iterators' arguments ``rank`` and ``num_ranks`` as numbers.

    Without them, and with 'auto' where no launcher has started the program, 0 of 1. ``own`` is what
    'auto' means, if it is known otherwise.
    """
    for name, value in (("rank", rank), (name_of_count, num_ranks)):
        if isinstance(value, str) and value != "auto":
            raise ValueError(f"{name} must be an integer, 'auto' or None, not {value!r}")
    others = [value for value in (rank, num_ranks) if not isinstance(value, str)]
    if len(others) < 2:
        if any(value is not None for value in others):
            raise ValueError(
                f"rank={rank!r} and {name_of_count}={num_ranks!r}: with 'auto' the launcher tells "
                "both, so leave the other one out"
            )
        return own or _ranks_of_launcher() or (0, 1)
    if rank is num_ranks is None:
        return 0, 1
    if rank is None or num_ranks is None:
        raise ValueError(
            f"give both rank and {name_of_count}, or rank='auto' to read the launcher's "
            "environment variables"
        )
    return _checked(rank, num_ranks, ("rank", name_of_count))


def _ranks_of_launcher() -> tuple[int, int] | None:
    """Rank and number of ranks by the launcher's environment variables; None without any.

    SLURM's variables count in a job step only. A job's script has them, too, and is a single
    process.
    """
    passing = "pass rank and num_ranks"
    for launcher, *variables in _ENVIRONMENT:
        values = [os.environ.get(name) for name in variables]
        if values == [None, None]:
            continue
        if launcher == "SLURM" and "SLURM_STEP_ID" not in os.environ:
            if values[1] in (None, "1"):
                continue
            raise ValueError(
                f"SLURM_NTASKS is {values[1]}, but this process is in no job step (SLURM_STEP_ID "
                f"is not set): start the program by srun, or {passing}"
            )
        try:
            rank, count = (checked_int(launcher, int(value or ""), minimum=0) for value in values)
        except ValueError:
            raise ValueError(
                f"{variables[0]} and {variables[1]} must be numbers, as {launcher} sets them, but "
                f"are {values[0]!r} and {values[1]!r}: {passing}"
            ) from None
        return _checked(rank, count, (variables[0], variables[1]))
    return None
