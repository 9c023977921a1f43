"""Texts of varying length: padded by the workers, with the lengths, and masked in the loop.

Examples are token ids, as many as a text has. `concat_examples` with `padding` makes rectangles of
them, in the worker that completes a batch; `return_lengths` tells what is padding::

    python examples/text_padding.py
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np

from fastiter import MultiprocessIterator, concat_examples
from fastiter.datasets import TextDataset, TransformDataset

LINES = [
    "the batch is already there",
    "padding fills what a text lacks",
    "a worker writes each example once",
    "so be it",
    "lengths tell the loop which tokens count and which are nothing but padding",
    "short",
    "the order is that of the file",
]


class Encoder:
    """Numbers the words of some texts, from 1 on; 0 is left for the padding."""

    def __init__(self, texts: list[str]) -> None:
        words = sorted({word for text in texts for word in text.split()})
        self.ids = {word: number for number, word in enumerate(words, start=1)}

    def __call__(self, line: str) -> tuple[np.ndarray, int]:
        tokens = np.array([self.ids[word] for word in line.split()], np.int64)
        return tokens, int(len(tokens) > 5)  # the label: is it a long text?


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.txt"
        path.write_text("\n".join(LINES) + "\n")
        dataset = TransformDataset(TextDataset(str(path)), Encoder(LINES))
        converter = functools.partial(
            concat_examples,
            padding=(0, None),  # tokens are padded, labels are not
            max_length=8,
            pad_to_multiple=4,
            return_lengths=True,
        )
        with MultiprocessIterator(
            dataset, 3, repeat=False, shuffle=False, n_processes=2, converter=converter
        ) as iterator:
            for tokens, labels, lengths in iterator:
                mask = np.arange(tokens.shape[1]) < lengths[:, None]
                means = (tokens * mask).sum(axis=1) / lengths
                print(
                    f"tokens {tokens.shape}  lengths {lengths.tolist()}  labels {labels.tolist()}"
                )
                print(f"    mean id {means.round(1).tolist()}  {mask.mean():.0%} of it is text")


if __name__ == "__main__":
    main()
