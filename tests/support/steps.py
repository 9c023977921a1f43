"""Actions between two steps of a function, as another thread may do them."""

from __future__ import annotations

import contextlib
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def at_step(
    function: Callable[..., Any],
    n: int,
    action: Callable[[], Any],
    event: str = "opcode",
    caller: Callable[..., Any] | None = None,
) -> Iterator[list[int]]:
    """Does `action` before the n-th instruction, or "line", that a function and its comprehensions
    run, or at its n-th "call" or "return". Those count that `caller`, if there is one, has called,
    directly or not. Gives a list that has an item from then on."""
    code, numbers, came = function.__code__, itertools.count(), list[int]()
    codes = {code}
    if event in ("opcode", "line"):
        codes |= {one for one in code.co_consts if isinstance(one, types.CodeType)}

    def trace(frame: types.FrameType, seen: str, _: Any) -> Any:
        if frame.f_code not in codes:
            return None
        frame.f_trace_opcodes = event == "opcode"
        above: types.FrameType | None = frame
        while caller is not None and above is not None and above.f_code is not caller.__code__:
            above = above.f_back
        if seen == event and above is not None and next(numbers) == n:
            came.append(n)
            action()
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        yield came
    finally:
        sys.settrace(former)


def each_step(
    function: Callable[..., Any], make: Callable[[], tuple[Callable[[], Any], Callable[[], Any]]]
) -> Iterator[Any]:
    """For each instruction of a function: the result of a call during which an action comes before
    it. ``make()`` gives both, the call and the action."""
    for n in itertools.count():
        call, action = make()
        with at_step(function, n, action) as came:
            found = call()
        if not came:
            return
        yield found
