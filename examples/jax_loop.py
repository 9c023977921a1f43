"""A JAX training loop: the next batch is transferred while the step computes with this one.

`as_jax` transfers it; on the CPU, JAX shares the memory of the batch instead. Workers are started
before JAX computes for the first time: its threads make a later fork unsafe, and JAX warns of it
(see docs/guide/interop.md)::

    python examples/jax_loop.py

With the number of a GPU as its argument the batches are copied there by CuPy, on a stream of its
own, and JAX takes them where they are. It needs CuPy, and a JAX for CUDA, which computes on its
first GPU::

    python examples/jax_loop.py 0
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastiter import MultiprocessIterator, concat_examples
from fastiter.interop import as_jax


class Waves:
    """Sine waves, as 64 samples, and their frequency."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.float32]:
        rng = np.random.default_rng(i)
        frequency = rng.uniform(1, 4)
        times = np.linspace(0, 1, 64) + rng.uniform()
        wave = np.sin(2 * np.pi * frequency * times) + rng.normal(0, 0.1, 64)
        return wave.astype(np.float32), np.float32(frequency)


def predict(params: list[Any], waves: jax.Array) -> jax.Array:
    spectrum = jnp.abs(jnp.fft.rfft(waves))
    hidden = jnp.tanh(spectrum @ params[0] + params[1])
    return hidden @ params[2] + params[3]


@jax.jit
def step(params: list[Any], waves: jax.Array, frequencies: jax.Array) -> tuple[list[Any], Any]:
    def error(params: list[Any]) -> jax.Array:
        return jnp.mean((predict(params, waves) - frequencies) ** 2)

    value, gradient = jax.value_and_grad(error)(params)
    return [p - 0.02 * g for p, g in zip(params, gradient, strict=True)], value


def main(gpu: int | None) -> None:
    with MultiprocessIterator(
        Waves(), 100, n_processes=2, converter=concat_examples, device=gpu
    ) as iterator:
        iterator.start()
        rng = np.random.default_rng(0)
        params: list[Any] = [
            rng.normal(0, 0.1, (33, 16)),
            np.zeros(16),
            rng.normal(0, 0.3, 16),
            2.5,
        ]
        params = [jnp.asarray(p, jnp.float32) for p in params]
        errors = []
        for waves, frequencies in as_jax(iterator):
            params, value = step(params, waves, frequencies)
            errors.append(float(value))
            if iterator.is_new_epoch:
                print(f"epoch {iterator.epoch}  mean squared error {np.mean(errors):.3f}")
                errors.clear()
            if iterator.epoch == 5:
                break


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else None)
