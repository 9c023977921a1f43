"""Measures a DataLoader of torch, and fastiter's in its place."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Generator
from typing import Any, NamedTuple

import torch.utils.data

from fastiter._cli.profile.loading import UsageError
from fastiter._cli.profile.report import show_text
from fastiter._cli.profile.search import Search
from fastiter._cli.profile.trials import ENOUGH_GAIN, Settings, Trials
from fastiter._util.units import as_seconds
from fastiter.interop._wrapped import map_leaves
from fastiter.torch import DataLoader

_PAGE = 4096
_WORKERS = (1, 2, 4, 8, 16, 32, 64)  # more are tried only while they help


class LoaderSubject(NamedTuple):
    """Facts that all trials have in common."""

    loader: Any
    step: float  # seconds that the loop takes for a batch
    batch_size: int = 1  # what is counted is batches

    def run(self, trials: Trials, window: float) -> None:
        """Add a trial: the first batch is timed, those made meanwhile are taken, then batches are
        counted for at least ``window`` seconds, the starts of further epochs among them. With a
        window of 0 the trial ends after the first batch."""
        settings = trials.settings
        with trials.noting_errors():
            begin = time.perf_counter()
            with contextlib.closing(self._batches(settings)) as batches:
                next(batches)
                first = time.perf_counter() - begin - self.step
                if window:
                    n_ahead, end = settings.workers * settings.prefetch, begin + first + window
                    while n_ahead > 0 and time.perf_counter() < end:
                        next(batches)
                        n_ahead -= 1
                    trials.count(lambda: next(batches), self.batch_size, window)
            trials.firsts.append(first)

    def _batches(self, settings: Settings) -> Generator[None, None, None]:
        """Take batches, epoch after epoch, as a training loop does."""
        loader = self._made(settings)
        while True:
            is_empty = True
            for batch in loader:
                is_empty = False
                map_leaves(_read, batch)
                time.sleep(self.step)
                yield
            if is_empty:
                raise RuntimeError("the loader has no batches, or none after its first epoch")

    def _made(self, settings: Settings) -> Any:
        """A loader like the one given, of the class and with the workers that are tried."""
        loader = self.loader
        names = ["collate_fn", "pin_memory", "pin_memory_device", "worker_init_fn", "generator"]
        if loader.batch_size is None and loader.batch_sampler is not None:
            names.append("batch_sampler")
        else:
            names += ["batch_size", "drop_last"]
            if not isinstance(loader.dataset, torch.utils.data.IterableDataset):
                names.append("sampler")
        chosen: dict[str, Any] = {"num_workers": settings.workers}
        if settings.workers:
            names += ["timeout", "persistent_workers", "in_order", "multiprocessing_context"]
            chosen["prefetch_factor"] = settings.prefetch
        if settings.method is not None:
            chosen["multiprocessing_context"] = settings.method
        kind: Any = DataLoader if settings.kind == "fastiter" else torch.utils.data.DataLoader
        if kind is DataLoader and isinstance(loader, DataLoader):
            names += ["seed_examples", "snapshot_every_n_steps"]
        return kind(loader.dataset, **{**{name: getattr(loader, name) for name in names}, **chosen})


def _read(value: Any) -> None:
    """Read an element of each page, as a training step does."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        value.reshape(-1)[:: max(1, _PAGE // value.element_size())].clone()


def run(name: str, loader: Any, options: argparse.Namespace) -> None:
    begin, budget = time.perf_counter(), options.budget
    print(f"Loader {name} of {type(loader.dataset).__name__}: about {budget:.0f} s ...", flush=True)
    subject = LoaderSubject(loader, options.step)
    n_workers, factor = loader.num_workers, loader.prefetch_factor or 2
    now = other = Settings("serial")
    if n_workers:
        now, other = (Settings(kind, n_workers, factor) for kind in ("torch", "fastiter"))
        if isinstance(loader, DataLoader):
            now, other = other, now
    tried = {settings: Trials(settings) for settings in (now, other)}
    for trials in tried.values():
        subject.run(trials, max(0.15, budget / 60))
    workers = options.workers or sorted({*_WORKERS, max(1, n_workers)})
    search = Search(
        subject,
        {"torch": workers, "fastiter": workers},
        options.prefetch or list(dict.fromkeys([factor, 2, 4, 8])),
        options.start_methods,
        budget - (time.perf_counter() - begin),
        0,
        max(max(1, n_workers) / trials.rate if trials.rate else 0 for trials in tried.values()),
        tried=tried,
    )
    try:
        best = search.search()
    except RuntimeError as error:
        raise UsageError(f"the loader gives no batches: {error}") from error
    print(f"\n  {'DataLoader':26}num_workers  prefetch_factor  batches/s  trials  first batch")
    for settings, trials in tried.items():
        line = f"  {_module(settings):26}{settings.workers:>11}{settings.prefetch or '-':>17}"
        if trials.rates:
            line += f"{trials.rate:>11,.1f}{len(trials.rates):>8}{as_seconds(trials.first):>13}"
        print(line + "  <- now" * (settings == now) + "  <- best" * (trials is best))
        show_text(trials.error, " " * 6)
    for method, trials in search.starts.items():
        first = trials.error or f"first batch after {as_seconds(trials.first)}"
        show_text(f"multiprocessing_context={method!r}: {first}", "  ")
    print(f"\nBest: {best.rate:,.1f} batches/s\n\n    {_code(best.settings)}\n")
    for sentence in _advice(subject, tried, tried[now], best):
        show_text(sentence, "- ")


def _module(settings: Settings) -> str:
    return "fastiter.torch" if settings.kind == "fastiter" else "torch.utils.data"


def _code(settings: Settings) -> str:
    arguments = f"num_workers={settings.workers}"
    if settings.workers:
        arguments += f", prefetch_factor={settings.prefetch}"
    if settings.method is not None:
        arguments += f", multiprocessing_context={settings.method!r}"
    return f"from {_module(settings)} import DataLoader\n    DataLoader(..., {arguments})"


def _advice(
    subject: LoaderSubject, tried: dict[Settings, Trials], now: Trials, best: Trials
) -> list[str]:
    """Advice and remarks, the most important first."""
    loader, step, found = subject.loader, subject.step, []
    own, other = (
        max((trials.rate for one, trials in tried.items() if one.kind == kind), default=0.0)
        for kind in ("fastiter", "torch")
    )
    if not best.settings.workers:
        found.append("Workers gain nothing here: a batch costs less than handing it over.")
    if own and other:
        found.append(f"With workers, fastiter.torch is {own / other:.2f} times as fast as torch.")
        if own < ENOUGH_GAIN * other:
            found[-1] += " The cost of dataset, collate_fn and step decides, not the class."
    if step:
        shares = [max(0.0, 1 - step * trials.rate) for trials in (now, best)]
        found.append(
            f"The loop waits {shares[0]:.0%} of its time now, {shares[1]:.0%} with the best."
        )
    with contextlib.suppress(TypeError):  # of an IterableDataset without a length
        n = len(loader)
        seconds = [as_seconds(one.first + n / one.rate) if one.rate else "-" for one in (now, best)]
        found.append(f"An epoch of {n:,} batches: {seconds[0]} now, {seconds[1]} with the best.")
        if (
            best.settings.workers
            and not loader.persistent_workers
            and best.first > 0.05 * n / best.rate
        ):
            found.append(
                f"Each epoch begins with {as_seconds(best.first)} to its first batch: "
                "persistent_workers=True keeps the workers."
            )
    return found
