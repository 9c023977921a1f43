"""Train a small classifier on handwritten digits while worker processes make the batches.

``python -m fastiter demo`` and ``python examples/digits.py`` run this file. Read it from the top:
the dataset, the classifier, the training loop, and `run`, which trains, and resumes a snapshot of
the middle of an epoch. If matplotlib is installed, it draws the learning curve.
"""

from __future__ import annotations

import argparse
import gzip
import multiprocessing
import tempfile
from collections.abc import Iterable
from functools import partial
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

import fastiter
from fastiter._cli.options import output_folder, positive

BATCH_SIZE = 50
N_TRAIN = 1500  # images, drawn at random; the other 297 are the test split
N_VIEWS = 4  # variants of each training image: 6,000 examples make an epoch
SIDE = 16  # pixels, of the images that are made of the data set's, which have 8

# A bar for each epoch; disable=None draws none if the output is no terminal.
progress = partial(tqdm, leave=False, disable=None, dynamic_ncols=True)


def render(image: NDArray[Any], angle: float, zoom: float, shift: Any) -> NDArray[Any]:
    """Return the square `image` with `SIDE` pixels, turned by `angle` (radians), magnified by
    `zoom` and moved by `shift` (two lengths, of its own pixels): interpolated between four each."""
    size = len(image)
    rows, columns = np.meshgrid(*2 * [np.linspace(-0.5, 0.5, SIDE) * size], indexing="ij")
    cosine, sine = np.cos(angle) / zoom, np.sin(angle) / zoom
    y = (cosine * rows - sine * columns + (size - 1) / 2 - shift[0]).clip(0, size - 1.001)
    x = (sine * rows + cosine * columns + (size - 1) / 2 - shift[1]).clip(0, size - 1.001)
    top, left = y.astype(int), x.astype(int)
    y -= top
    x -= left
    above = image[top, left] * (1 - x) + image[top, left + 1] * x
    below = image[top + 1, left] * (1 - x) + image[top + 1, left + 1] * x
    result: NDArray[Any] = above * (1 - y) + below * y
    return result


class Digits(fastiter.dataset.DatasetMixin):
    """Lines of text ``pixel,...,pixel,label``, decoded and augmented when they are asked for.

    Index `i` is one of `n_views` variants of line ``i % len(lines)``. Its random numbers depend on
    `seed` and `i` only, so an example is the same whichever worker makes it, and whenever.
    """

    def __init__(self, lines: list[str], n_views: int = 1, seed: int | None = None) -> None:
        self.lines, self.n_views, self.seed = lines, n_views, seed

    def __len__(self) -> int:
        return len(self.lines) * self.n_views

    def get_example(self, i: int) -> tuple[NDArray[np.float32], int, int]:
        """Return the image, float32 of shape (SIDE, SIDE), its label, and `i` itself."""
        *pixels, label = self.lines[i % len(self.lines)].split(",")
        image = np.array(pixels, np.float64).reshape(8, 8) / 16
        if self.seed is None:
            image = render(image, 0, 1, (0, 0))
        else:
            rng = np.random.default_rng((self.seed, i))
            angle, zoom, shift = rng.normal(0, 0.1), rng.uniform(0.9, 1.1), rng.normal(0, 0.3, 2)
            image = render(image, angle, zoom, shift)
            image += rng.normal(0, 0.05, image.shape)
        return image.astype(np.float32), int(label), i


def load_digits(seed: int) -> tuple[Digits, Digits]:
    """Return the training split, with augmentation, and the test split, without."""
    packed = resources.files("fastiter._cli.demo").joinpath("digits.csv.gz").read_bytes()
    lines = gzip.decompress(packed).decode().splitlines()
    lines = [lines[i] for i in np.random.default_rng(0).permutation(len(lines))]
    return Digits(lines[:N_TRAIN], N_VIEWS, seed), Digits(lines[N_TRAIN:])


class Classifier:
    """Softmax regression on random features, trained by gradient descent with momentum. The first
    axis of features and weights are blocks, so small that NumPy needs no threads for them."""

    rate = 0.05  # length of a step

    def __init__(self, seed: int, n_blocks: int = 64, n_features: int = 20) -> None:
        rng = np.random.default_rng(seed)
        drawn = rng.normal(0, np.sqrt(2 / SIDE**2), (n_blocks, SIDE**2, n_features))
        self.projection = drawn.astype(np.float32)
        self.weights = np.zeros((n_blocks, n_features, 10), np.float32)
        self.velocity = np.zeros_like(self.weights)

    def forward(self, images: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return features and class scores of `images`, shape (n, SIDE, SIDE)."""
        features = np.maximum(images.reshape(len(images), SIDE**2) @ self.projection, 0)
        return features, (features @ self.weights).sum(axis=0)

    def step(self, images: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
        """Descend one step along the gradient of the mean cross entropy; return that."""
        features, scores = self.forward(images)
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = -np.log(p[rows, labels] + 1e-12).mean()
        p[rows, labels] -= 1
        gradient = features.swapaxes(1, 2) @ (p / len(labels))
        self.velocity = 0.9 * self.velocity - self.rate * gradient
        self.weights += self.velocity
        return float(loss)

    def accuracy(self, images: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
        """Return the share of `images` whose highest score is that of their label."""
        return float((self.forward(images)[1].argmax(axis=1) == labels).mean())


def train(
    model: Classifier, iterator: Any, steps: Iterable[int]
) -> tuple[list[float], list[list[int]]]:
    """Train `model` on a batch of `iterator` for each of `steps`; return losses and indices."""
    losses, batches = [], []
    for _ in steps:
        images, labels, indices = fastiter.concat_examples(next(iterator))
        losses.append(model.step(images, labels))
        batches.append(indices.tolist())
    return losses, batches


def draw_curve(losses: list[float], accuracies: list[float], path: Path) -> str:
    """Save loss and test error against the epoch as a PNG; return where, or why not."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "not drawn: matplotlib is not installed"
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    curves = {"training loss": losses, "test error": [1 - a for a in accuracies]}
    for axes, (title, values) in zip(figure.subplots(1, 2), curves.items(), strict=True):
        epochs = range(1, len(values) + 1)
        axes.plot(epochs, values, marker="o")
        axes.set(title=title, xlabel="epoch", xticks=epochs, ylim=(0, 1.1 * max(values)))
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    return str(path)


def run(options: argparse.Namespace) -> None:
    """Train, and resume a snapshot of the middle of the last epoch."""
    np.random.seed(options.seed)  # the iterators shuffle with NumPy's global generator
    training, test = load_digits(options.seed)
    test_images, test_labels, _ = fastiter.concat_examples(test[:])
    out = options.out or Path(tempfile.mkdtemp(prefix="fastiter-demo-"))
    context = options.start_method and multiprocessing.get_context(options.start_method)
    workers = {"n_processes": options.processes, "n_prefetch": 4, "context": context}
    n_batches = len(training) // BATCH_SIZE
    half = n_batches // 2
    model = Classifier(options.seed)
    losses, accuracies = [], []
    with fastiter.MultiprocessIterator(training, BATCH_SIZE, **workers) as iterator:
        for epoch in range(1, options.epochs + 1):
            model.rate = Classifier.rate * (1 - (epoch - 1) / options.epochs)
            steps = iter(progress(range(n_batches), f"epoch {epoch}"))
            first_losses, _ = train(model, iterator, islice(steps, half))
            if epoch == options.epochs:
                # dict.setdefault is a serializer: it fills an empty dict, and reads a full one.
                state: dict[str, Any] = {}
                iterator.serialize(state.setdefault)
                np.savez(out / "snapshot.npz", **state)
            last_losses, remaining = train(model, iterator, steps)
            losses.append(float(np.mean(first_losses + last_losses)))
            accuracies.append(model.accuracy(test_images, test_labels))
            print(f"epoch {epoch}  loss {losses[-1]:.3f}  test accuracy {accuracies[-1]:.3f}")

    with fastiter.MultiprocessIterator(training, BATCH_SIZE, **workers) as iterator:
        with np.load(out / "snapshot.npz") as saved:
            iterator.serialize(dict(saved).setdefault)
        resumed = [[i for _, _, i in next(iterator)] for _ in remaining]
        if resumed != remaining or not iterator.is_new_epoch:
            raise RuntimeError("the resumed iterator did not deliver the rest of the epoch")
    print(f"snapshot in the middle of epoch {options.epochs}: {out / 'snapshot.npz'}")
    print(f"a new iterator resumed it with exactly the {len(remaining)} remaining batches")
    print(f"test accuracy {accuracies[-1]:.2f}")
    print(f"learning curve: {draw_curve(losses, accuracies, out / 'learning_curve.png')}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that `run` takes."""
    methods = multiprocessing.get_all_start_methods()
    parser.add_argument("--epochs", type=positive, default=5, help="default: 5")
    parser.add_argument("--processes", type=positive, default=2, help="workers (default: 2)")
    parser.add_argument("--start-method", choices=methods, help="how the workers start")
    parser.add_argument("--seed", type=int, default=0, help="for order, augmentation, weights")
    parser.add_argument("--out", type=output_folder, help="folder (default: a temporary one)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_options(parser)
    run(parser.parse_args())
