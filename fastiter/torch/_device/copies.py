"""Copies of a loader's batches to a device, some of them ahead of the batch that is delivered."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch

from fastiter._order.plan import Plan, PlanQueue
from fastiter._util.arguments import checked_int
from fastiter.interop._wrapped import map_leaves
from fastiter.torch._worker import Reply


def checked_device(device: Any) -> torch.device | None:
    if device is None or isinstance(device, torch.device):
        return device
    if isinstance(device, bool) or not isinstance(device, (int, str)):
        raise TypeError(f"device must be a torch.device, a name or a number, not {device!r:.80}")
    if isinstance(device, int):
        checked_int("device", device, minimum=0, maximum=127)  # torch takes more, modulo 256
    try:
        return torch.device(device)
    except RuntimeError as error:
        kind = ValueError if isinstance(device, str) else RuntimeError  # there is no GPU
        raise kind(f"device={device!r}: {error}") from error


class DeviceCopies:
    """Copies batches to the device of a loader. To a GPU, on a stream of its own.

    Three orders are kept. *The copy before its use*: the stream that is current in `hand_out`
    waits for the event behind the copies; the host and other streams do not wait. *The use before
    the memory is allocated again*: tensors are recorded for that stream. *The copy before its
    source is written again*: a slot waits for all that the GPUs were given before it was left
    (`PinnedSlots`), and so does torch's pinned memory; from other memory a copy ends before
    `begin` does. ``n_ahead`` batches are copied ahead of the one that is handed out.
    """

    def __init__(self, device: torch.device, n_ahead: int) -> None:
        self.device, self._most = device, n_ahead + 1
        self._stream: Any = None

    @classmethod
    def of(cls, arguments: Any) -> DeviceCopies | None:
        """The copies of a loader with these arguments; None if its batches stay on the host.
        RuntimeError if the device is a GPU, and torch finds none."""
        device = arguments.device
        if device is None or device.type == "cpu":
            return None
        if device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(f"device={str(device)!r}, but torch finds no GPU (CUDA)")
        return cls(device, arguments.n_device_prefetch)

    def begin(self, batch: Any) -> Any:
        """Begin to copy the tensors of a batch to a GPU: a `Pending` batch. For other devices, the
        batch as it is."""
        if self.device.type != "cuda" or isinstance(batch, Pending):
            return batch
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        tensors: list[torch.Tensor] = []

        def copied(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf  # how many tensors an object has, it alone knows
            tensors.append(leaf.to(self.device, non_blocking=True))
            return tensors[-1]

        with torch.cuda.stream(self._stream):
            tree = map_leaves(copied, batch, _has_to)
            return Pending(tree, tensors, self._stream.record_event())

    def hand_out(self, batch: Any) -> Any:
        """Return a batch on the device, for the stream that is current. Called again for the same
        batch, it gives the same."""
        pending = self.begin(batch)
        if isinstance(pending, Pending):
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(pending.copied)
            for tensor in pending.tensors:
                tensor.record_stream(stream)
            batch = pending.tree
        return map_leaves(self._moved, batch, _has_to)

    def _moved(self, leaf: Any) -> Any:
        if not _has_to(leaf):
            return leaf
        if isinstance(leaf, torch.Tensor):
            return leaf.to(self.device)
        try:
            return leaf.to(self.device, non_blocking=True)
        except TypeError:  # its own method takes a device alone
            return leaf.to(self.device)

    def begin_ahead(self, executor: Any, plans: PlanQueue, are_collated: bool) -> None:
        """Begin to copy the first batches that workers have completed. ``are_collated``: a list of
        shared rows is a batch, and no examples about which the policy has to decide."""
        if self.device.type != "cuda":
            return
        executor.start(plans)  # none may be under way, where those ahead are complete
        for plan in [*plans.plans]:
            if plan.outcome is not None:
                self._begin_of(plan, are_collated)
        while sum(plan.outcome is not None for plan in plans.plans) < self._most:
            if (plan := executor.ready(plans)) is None:
                return
            self._begin_of(plan, are_collated)

    def _begin_of(self, plan: Plan, are_collated: bool) -> None:
        """Begin to copy the batch that is a plan's outcome, if nothing is to be decided first."""
        outcome = plan.outcome
        if plan.request is None:
            if (are_collated or type(outcome) is not list) and _is_batch(outcome):
                plan.outcome = self.begin(outcome)
        elif type(outcome) is list:
            (reply,) = outcome
            if type(reply) is not Reply:
                if _is_batch(reply):
                    plan.outcome = [self.begin(reply)]
            elif not reply.failures and _is_batch(reply.batch):
                plan.outcome = [reply._replace(batch=self.begin(reply.batch))]


class Pending:
    """A batch on its way to a GPU."""

    def __init__(self, tree: Any, tensors: list[torch.Tensor], copied: Any) -> None:
        self.tree, self.tensors, self.copied = tree, tensors, copied


def _is_batch(value: Any) -> bool:
    """Whether it has a tensor, and is no `Failure` or torch's exception of a worker."""
    return isinstance(value, (torch.Tensor, tuple, list, MutableMapping))


def _has_to(value: Any) -> bool:
    """Whether it moves itself, as a tensor does."""
    return callable(getattr(value, "to", None)) and not isinstance(value, type)
