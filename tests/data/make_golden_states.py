"""Writes golden states of iterators and loaders, with the batches that follow.

    PYTHONPATH=tests:tests/support python tests/data/make_golden_states.py

makes ``states.json`` beside this file. It was made once, by the code of that time: a state that a
release has written must load in all later ones. Add states of a new kind; never make old ones anew.
"""

from __future__ import annotations

from support import frozen_loader_states, frozen_states

if __name__ == "__main__":
    known = frozen_states.frozen() if frozen_states.STATES.exists() else {}
    made = {**dict(frozen_states.new_states()), **dict(frozen_loader_states.new_states())}
    frozen_states.STATES.write_text(frozen_states.written({**made, **known}))
