"""The loop of all iterators, ``next()``, and the executors that make its batches.

`loop` has ``next()``, `executor` the base of what makes batches, and a module each of them;
`device_stage` copies batches to a GPU, `chainer_state` reads and writes Chainer's serializers.
docs/internals/engine.md explains it.
"""
