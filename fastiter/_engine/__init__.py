"""The loop of all iterators: one call of ``next()`` makes a batch, then commits it.

`loop` has ``next()``, `executor` the protocol of what makes batches, and a module each of them;
`device_stage` copies batches to a GPU, `chainer_state` reads and writes Chainer's serializers.
docs/internals/engine.md explains it.
"""
