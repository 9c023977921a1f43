"""`TokenBatchSampler`: budgets, like costs on all ranks, states."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fastiter import SerialIterator, concat_examples
from fastiter._plan.epoch_sampler import Cutting
from fastiter.tokens import TokenBatchSampler, TokenDataset

RNG = np.random.default_rng(0)
LENGTHS = np.clip(RNG.lognormal(3, 1, 12_000).astype(int), 1, 128)
TOKENS = np.arange(LENGTHS.sum(), dtype=np.int32)
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])


def packed(seed=0):
    return TokenDataset(
        TOKENS, 128, packing="bfd", documents=OFFSETS, window=500, seed=seed, dtype=np.int32
    )


def single():
    return TokenDataset(TOKENS, documents=OFFSETS, dtype=np.int32, fields=("input_ids", "n_tokens"))


@pytest.mark.parametrize("balance", ["tokens", "attention", None])
@pytest.mark.parametrize(("batch_size", "num_ranks"), [(8, 4), (1, 8), (8, 1)])
@pytest.mark.parametrize("seed", [None, 3])
def test_ranks_have_like_costs_and_each_row_comes_once(balance, batch_size, num_ranks, seed):
    dataset = packed()
    sampler = TokenBatchSampler(dataset, batch_size, balance=balance, seed=seed)
    for number in range(2):
        cutting = Cutting(0, num_ranks, sampler.limits())
        order, cuts = sampler._plan_batches(None, len(dataset), number, cutting)
        dataset.set_epoch(number)
        rows = dataset.__fastiter_epochs__().rows_of(number).numbers(order[:])
        assert sorted(rows) == list(range(len(dataset)))
        assert (order[:] >> 40 == number + 1).all()
        steps = len(rows) // (batch_size * num_ranks)
        assert set(np.diff(cuts[: steps * num_ranks + 1])) == {batch_size}
        costs = dataset.lengths if balance == "tokens" else dataset.costs
        dealt = costs[rows[: cuts[steps * num_ranks]]].reshape(steps, num_ranks, batch_size).sum(2)
        ratio = dealt.max(1) / dealt.mean(1)
        if balance is not None:
            assert ratio.mean() <= 1.05 and np.quantile(ratio, 0.95) <= 1.12


@pytest.mark.parametrize("num_ranks", [8, 32])
def test_single_rows_of_rare_costs_wait_for_others_like_them(num_ranks):
    lengths = np.clip(np.random.default_rng(0).zipf(1.5, 250_000), 1, 2048)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    dataset = TokenDataset(
        np.zeros(ends[-1], np.uint8), 2048, packing="bfd", documents=ends, window=10_000, seed=0
    )
    order, _ = TokenBatchSampler(dataset, 1, balance="attention")._plan_batches(
        None, len(dataset), 0, Cutting(0, num_ranks, (1, None))
    )
    rows = dataset.__fastiter_epochs__().rows_of(0).numbers(order[:])
    assert sorted(rows) == list(range(len(dataset)))
    n_steps = len(rows) // num_ranks
    costs = dataset.costs[rows[: n_steps * num_ranks]].reshape(n_steps, num_ranks)
    ratio = costs.max(1) / costs.mean(1)
    assert ratio.mean() <= 1.05 and np.quantile(ratio, 0.95) <= 1.12


@pytest.mark.parametrize("loads", [1, 2, 3])
def test_a_state_goes_on_on_other_ranks(loads):
    def on(rank, ranks):
        sampler = TokenBatchSampler(packed(), 4, balance="attention")
        return SerialIterator(
            packed(), batch_sampler=sampler, rank=rank, num_ranks=ranks, converter=concat_examples
        )

    iterators = [on(rank, 2) for rank in range(2)]
    size = len(packed())
    for cut in (20, size // 8 + 30):
        before = [next(iterator)["input_ids"] for _ in range(cut) for iterator in iterators]
        text = json.dumps(iterators[0].state_dict())
        assert len(text) <= 512
        others = [on(rank, loads) for rank in range(loads)]
        for other in others:
            other.load_state_dict(json.loads(text))
        seen, epoch = [], others[0].epoch
        while others[0].epoch == epoch:
            seen += [next(other)["input_ids"] for other in others]
        if cut == 20:  # the first epoch is complete
            firsts = np.concatenate([*before, *seen])
            tokens = np.unique(firsts)
            np.testing.assert_array_equal(tokens[tokens > 0], TOKENS[1:])
        if loads == 2:  # the same arguments: the same batches
            for batch in seen[:10]:
                iterators = iterators[1:] + iterators[:1]
                np.testing.assert_array_equal(batch, next(iterators[-1])["input_ids"])
        iterators = [on(rank, 2) for rank in range(2)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loader_of_torch(num_workers):
    pytest.importorskip("torch")
    from fastiter.torch import DataLoader

    def on(rank):
        dataset = packed()
        dataset.set_epoch(3)  # the batches tell their own epoch
        sampler = TokenBatchSampler(dataset, 8, balance="attention")
        return DataLoader(
            dataset, batch_sampler=sampler, rank=rank, num_replicas=2, num_workers=num_workers
        )

    for rank in range(2):
        sampler = TokenBatchSampler(packed(), 8, balance="attention")
        iterator = SerialIterator(
            packed(), batch_sampler=sampler, rank=rank, num_ranks=2, converter=concat_examples
        )
        loader = on(rank)
        for epoch in range(2):
            rest, state = [], ""
            for batch in loader:
                np.testing.assert_array_equal(batch["input_ids"], next(iterator)["input_ids"])
                assert loader.indices == iterator.address.indices.tolist()
                rest.append(loader.indices)
                state = state or json.dumps(loader.state_dict())
            assert iterator.epoch == epoch + 1
        other = on(1 - rank)  # states are equal on all ranks
        other.load_state_dict(json.loads(state))
        assert len([*other]) == len(rest) - 1
        other = on(rank)
        other.load_state_dict(json.loads(state))
        assert [other.indices for _ in other] == rest[1:]


def test_a_budget_of_tokens_limits_rows_times_the_longest():
    dataset = single()
    sampler = TokenBatchSampler(dataset, max_tokens=1000, seed=1)
    iterator = SerialIterator(
        dataset, batch_sampler=sampler, repeat=False, converter=concat_examples
    )
    batches = list(iterator)
    assert all(batch["input_ids"].size <= 1000 for batch in batches)
    assert sum(len(batch["input_ids"]) for batch in batches) == len(dataset)
    padded = sum(batch["input_ids"].size for batch in batches)
    assert padded < 1.1 * len(TOKENS)
    with pytest.raises(ValueError, match="more than max_tokens=100"):
        SerialIterator(dataset, batch_sampler=TokenBatchSampler(dataset, max_tokens=100))


def test_wrong_arguments():
    for arguments, message in (
        ({}, "nothing limits"),
        ({"batch_size": 4, "balance": "cost"}, "balance must be"),
        ({"max_tokens": 400, "balance": "tokens"}, "deals batches of one size"),
    ):
        with pytest.raises(ValueError, match=message):
            TokenBatchSampler(packed(), **arguments)


@pytest.mark.parametrize("limits", [{"batch_size": 4}, {"batch_size": 4, "max_tokens": 100}])
def test_too_few_rows_for_a_step_are_told(limits):
    dataset = TokenDataset([[1, 2, 3]] * 4, 4, packing="concat")
    sampler = TokenBatchSampler(dataset, drop_last=True, **limits)
    for num_ranks in (1, 2):
        ranks = {} if num_ranks == 1 else {"rank": 0, "num_ranks": num_ranks}
        message = f"do not fill a batch for each of {num_ranks} ranks, and drop_last=True"
        with pytest.raises(ValueError, match=message):
            SerialIterator(dataset, batch_sampler=sampler, **ranks)
    TokenBatchSampler(dataset, 1, drop_last=True)
