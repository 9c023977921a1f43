"""The side of a candidate's process: it obeys one line of JSON after the other from stdin."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from bench.harness.verify import WrongContent


def serve(make: Callable[[], Any]) -> int:
    """Answer ``{"do": METHOD, ...}`` by what this method of ``make()`` returns, until stdin ends.

    An answer is a line on what was stdout: ``{"ok": true, ...}``, the first one when ``make`` has
    returned, or why there will be no other: ``{"ok": false, "kind": ..., "reason": ...}``.
    """
    # What a library prints goes to stderr; workers inherit the answers' pipe as another descriptor.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        slices = make()
        answers.write('{"ok": true}\n')
        for line in sys.stdin:
            request = json.loads(line)
            found = getattr(slices, request.pop("do"))(**request)
            answers.write(json.dumps({"ok": True, **found}) + "\n")
    except Exception as error:
        kind, reason = "FAILED", f"{type(error).__name__}: {error}"
        if isinstance(error, WrongContent):
            kind, reason = "WRONG", str(error)
        elif isinstance(error, ImportError):
            kind = "skipped"
        else:
            traceback.print_exc()
        answers.write(json.dumps({"ok": False, "kind": kind, "reason": reason}) + "\n")
        return 1
    return 0
