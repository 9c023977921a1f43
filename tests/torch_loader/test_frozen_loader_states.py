"""States that an earlier `DataLoader` has written load, with the batches that came then."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from support.frozen_loader_states import CASES, rest_of  # noqa: E402
from support.frozen_states import frozen  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")

FROZEN = {name: known for name, known in frozen().items() if " workers, " in name}


def test_there_are_states_of_each_case():
    assert {name.rsplit(", ", 2)[0] for name in FROZEN} == {*CASES}


@pytest.mark.parametrize("name", FROZEN)
def test_a_state_goes_on(name):
    known = FROZEN[name]
    case, workers, _ = name.rsplit(", ", 2)
    torch.manual_seed(4)
    loader = CASES[case](int(workers.removesuffix(" workers")))
    loader.load_state_dict(known["state"])
    rest, expected = rest_of(loader), known["batches"]
    if not loader.in_order:  # the first ones are those that were missing
        rest, expected = sorted(rest), sorted(expected)
    assert rest == expected
