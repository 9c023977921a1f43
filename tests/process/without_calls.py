"""Runs a program on a kernel that lacks system calls, or refuses them as sandboxes do:

    python without_calls.py ENOSYS memfd_create,pidfd_open PROGRAM [ARGUMENT...]

A seccomp filter answers these calls with that error, in the program and all its descendants.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

NUMBERS = {
    "x86_64": {
        "memfd_create": 319,
        "pidfd_open": 434,
        "eventfd2": 290,
        "futex": 202,
        "madvise": 28,
        "prctl": 157,
        "sched_getaffinity": 204,
        "fallocate": 285,
    },
    "aarch64": {
        "memfd_create": 279,
        "pidfd_open": 434,
        "eventfd2": 19,
        "futex": 98,
        "madvise": 233,
        "prctl": 167,
        "sched_getaffinity": 123,
        "fallocate": 47,
    },
}
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_AT_NUMBER, _AT_ARCHITECTURE = 0, 4  # in struct seccomp_data


def _filter(names: list[str], error: int) -> list[tuple[int, int, int, int]]:
    """The filter's instructions: code, jump if true, jump if false, operand."""
    machine = platform.machine()
    program = [
        (_LOAD, 0, 0, _AT_ARCHITECTURE),
        (_JUMP_IF_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _AT_NUMBER),
    ]
    for name in names:
        program.append((_JUMP_IF_EQUAL, 0, 1, NUMBERS[machine][name]))
        program.append((_RETURN, 0, 0, _ERRNO | error))
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def refuse(names: list[str], error: int) -> None:
    """From now on these calls fail in this process and its children.

    Raises
    ------
    OSError
        If the kernel takes no filter.
    """
    program = _filter(names, error)
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    instructions = ctypes.create_string_buffer(code, len(code))
    head = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(program), ctypes.addressof(instructions))
    )
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(head)),
    ):
        if libc.prctl(arguments[0], *map(ctypes.c_ulong, arguments[1:]), 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl{arguments}")


if __name__ == "__main__":
    refuse(sys.argv[2].split(","), getattr(errno, sys.argv[1]))
    os.execvp(sys.argv[3], sys.argv[3:])
