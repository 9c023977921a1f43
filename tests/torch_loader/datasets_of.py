"""Datasets of torch that several files of tests take."""

from __future__ import annotations

import torch
import torch.utils.data as torch_data

N = 37


class Dataset(torch_data.Dataset):
    def __init__(self, function, n=N):
        self.function, self.n = function, n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return self.function(index)


class Stream(torch_data.IterableDataset):
    def __init__(self, n=23):
        self.n = n

    def __iter__(self):
        info = torch_data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        if info is not None:
            assert info.seed == torch.initial_seed()
            assert self in (info.dataset, *getattr(info.dataset, "datasets", ()))
        # One part of the stream is longer.
        for i in range(first, self.n + 20 * (first == 1), step):
            yield torch.tensor([i, first])
