"""Datasets of image files: what they list, what they give, and how they fail."""

from __future__ import annotations

import functools
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from photographs import photograph, saved

pytest.importorskip("PIL")

from fastiter import (
    Epoch,
    EpochSampler,
    MultiprocessIterator,
    MultithreadIterator,
    SerialIterator,
    ShuffleOrderSampler,
)
from fastiter.datasets import ArrowDataset, ConcatenatedDataset, SubDataset, TransformDataset
from fastiter.errors import ImageError
from fastiter.images import ImageFiles, ImageFolder, RandomResizedCrop, Resize, decode

CROP = RandomResizedCrop(16, flip=0.5)
N = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes of six images each, and files that are none."""
    root = tmp_path_factory.mktemp("photographs")
    for number in range(N):
        place = root / ("cat", "dog")[number % 2] / ("", "old")[number % 4 // 2]
        place.mkdir(parents=True, exist_ok=True)
        name = f"{number}.{('jpg', 'JPEG', 'png')[number % 3]}"
        kind = "PNG" if name.endswith("png") else "JPEG"
        (place / name).write_bytes(saved(photograph(40, 50 + number, number), kind))
    (root / "dog" / "notes.txt").write_text("no image")
    (root / "list.jpg").write_text("of no class")
    return root


@pytest.fixture
def files(folder):
    return [path for path, _ in ImageFolder(folder, CROP).samples]


def test_a_folder_has_classes_labels_and_samples(folder):
    dataset = ImageFolder(folder, Resize((4, 5)))
    assert dataset.classes == ["cat", "dog"]
    assert dataset.class_to_idx == {"cat": 0, "dog": 1}
    assert dataset.targets == [0] * 6 + [1] * 6
    assert len(dataset) == len(dataset.samples) == N
    assert repr(dataset) == "ImageFolder(12 files, Resize((4, 5)))"
    for i, (path, label) in enumerate(dataset.samples):
        image, own = dataset[i]
        assert (image.shape, image.dtype, own) == ((3, 4, 5), np.uint8, label)
        assert np.array_equal(image, decode(Path(path).read_bytes(), Resize((4, 5))))
    assert np.array_equal(dataset[-1][0], image)
    with pytest.raises(IndexError):
        dataset[N]


@pytest.mark.processes  # by importing torch
def test_a_folder_is_listed_as_by_torchvision(folder, tmp_path):
    torchvision = pytest.importorskip("torchvision", reason="it is what the order is compared to")
    theirs = torchvision.datasets.ImageFolder(folder)
    own = ImageFolder(folder, CROP)
    assert (own.classes, own.class_to_idx) == (theirs.classes, theirs.class_to_idx)
    assert (own.samples, own.targets) == (theirs.samples, theirs.targets)
    (tmp_path / "empty").mkdir()
    for root in (tmp_path, tmp_path / "empty", tmp_path / "missing"):
        with pytest.raises(FileNotFoundError) as expected:
            torchvision.datasets.ImageFolder(root)
        with pytest.raises(FileNotFoundError) as found:
            ImageFolder(root, CROP)
        assert str(found.value) == str(expected.value)


def test_a_folder_without_images_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="class folder"):
        ImageFolder(tmp_path, CROP)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.gif").touch()
    with pytest.raises(FileNotFoundError, match="for the classes cat"):
        ImageFolder(tmp_path, CROP)
    assert len(ImageFolder(tmp_path, CROP, extensions=".GIF")) == 1
    assert len(ImageFolder(tmp_path, CROP, extensions=[".jpg", ".gif"])) == 1
    for wrong in (3, None, [3], (".gif", None)):
        with pytest.raises(TypeError, match="extensions"):
            ImageFolder(tmp_path, CROP, extensions=wrong)


def test_relative_paths_are_resolved_at_once(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder.parent)
    dataset = ImageFolder(folder.name, Resize(4))
    one = ImageFiles([os.path.relpath(dataset.samples[0][0])], Resize(4))
    monkeypatch.chdir(tmp_path)
    assert np.array_equal(dataset[0][0], one[0])


def test_a_pickle_does_not_list_the_folder_again(folder, monkeypatch):
    dataset = ImageFolder(folder, Resize((4, 5)), exif=True, scaled=False)
    data = pickle.dumps(dataset)
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", None)
        patched.setattr(os, "walk", None)
        again = pickle.loads(data)
    assert again.samples == dataset.samples
    assert np.array_equal(again[3][0], dataset[3][0])


def test_labels_are_as_given(files):
    for labels in (list("abcdefghijkl"), np.eye(N), np.arange(N), [{"n": n} for n in range(N)]):
        dataset = ImageFiles(files, Resize(4), labels)
        assert all(np.all(dataset[i][1] == labels[i]) for i in range(N))
    assert ImageFiles(files, Resize((4, 4)))[0].shape == (3, 4, 4)
    with pytest.raises(ValueError, match="labels"):
        ImageFiles(files, Resize(4), [0, 1])
    with pytest.raises(TypeError, match="paths"):
        ImageFiles(files[0], Resize(4))
    with pytest.raises(TypeError, match="paths"):
        ImageFiles([3], Resize(4))


def test_the_content_decides_about_the_format(tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(saved(photograph(8, 9), "PNG"))
    dataset = ImageFiles([path], Resize((8, 9), layout="hwc"))
    assert np.array_equal(dataset[0], photograph(8, 9))


def test_without_pillow_a_dataset_is_not_made(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="pip install pillow simplejpeg"):
        ImageFiles(files, Resize(4))


def test_a_callable_gets_an_array_of_its_own(files):
    dataset = ImageFiles(files, Resize((4, 5)), range(N), callable=lambda image: [image])
    [image], label = dataset[2]
    assert image.flags.c_contiguous
    assert image.flags.owndata
    assert label == 2
    out = np.zeros_like(image)
    [image], label = dataset.__fastiter_into__(2, (out,))
    assert not np.shares_memory(image, out)
    assert not out.any()


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_an_array_is_made_in_its_place(files, dtype):
    dataset = ImageFiles(files, Resize((8, 9), dtype=dtype), range(N))
    rows = np.zeros((3, 3, 8, 9), dtype)
    image, label = dataset.__fastiter_into__(5, (rows[1], np.zeros((), np.int64)))
    assert np.shares_memory(image, rows)
    assert label == 5
    assert np.array_equal(rows[1], dataset[5][0])
    assert not rows[::2].any()
    misfits = (
        np.zeros((3, 8, 8), dtype),
        np.zeros((3, 8, 9), np.int16),
        np.zeros((8, 9, 3), dtype),
    )
    for out in [(), *((misfit,) for misfit in misfits), (np.zeros((3, 8, 18), dtype)[..., ::2],)]:
        image, label = dataset.__fastiter_into__(5, out)
        assert np.array_equal(image, rows[1])
        assert not any(np.shares_memory(image, misfit) for misfit in misfits)


class InPlace(ImageFolder):
    def __fastiter_into__(self, i, out):
        image, label = self[i] if i % 2 else super().__fastiter_into__(i, out)
        out[0][:] = image
        return out[0], label


@pytest.mark.processes
def test_a_subclass_may_write_its_rows_in_another_way(folder):
    dataset, expected = (kind(folder, Resize((8, 9))) for kind in (InPlace, ImageFolder))
    assert same([dataset[i] for i in range(N)], [expected[i] for i in range(N)])
    repeated = [expected[i] for _ in range(4) for i in range(N)]
    with make("1", dataset, repeat=True, shuffle=False, order_sampler=None) as iterator:
        assert same([row for _ in range(12) for row in next(iterator)], repeated)


def test_files_that_cannot_be_read_are_errors_with_their_path(tmp_path, files):
    (tmp_path / "cut.jpg").write_bytes(Path(files[0]).read_bytes()[:900])
    (tmp_path / "folder.jpg").mkdir()
    for name in ("cut.jpg", "folder.jpg", "missing.jpg", "a\0b.jpg"):
        path = os.path.join(tmp_path, name)
        with pytest.raises(ImageError) as caught:
            ImageFiles([path], Resize(4))[0]
        assert caught.value.path == path
        assert path in str(caught.value)
        assert caught.value.__cause__ is not None
        again = pickle.loads(pickle.dumps(caught.value))
        assert (again.path, again.reason) == (path, caught.value.reason)


# ---- draws


def rows_of(iterator):
    with iterator:
        return [row for batch in iterator for row in batch]


def make(kind, dataset, **options):
    sampler = ShuffleOrderSampler(7)
    options = {"repeat": False, "order_sampler": sampler, **options}
    if kind == "serial":
        return SerialIterator(dataset, 4, **options)
    if kind == "threads":
        return MultithreadIterator(dataset, 4, n_threads=3, **options)
    return MultiprocessIterator(dataset, 4, n_processes=int(kind), **options)


def same(rows, others):
    return len(rows) == len(others) and all(
        np.array_equal(a, b) and label == other
        for (a, label), (b, other) in zip(rows, others, strict=True)
    )


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["threads", "1", "2", "4"])
def test_crops_do_not_depend_on_the_workers(folder, kind):
    dataset = ImageFolder(folder, CROP)
    expected = rows_of(make("serial", dataset))
    assert same(rows_of(make(kind, dataset)), expected)
    assert not same(
        rows_of(make("serial", dataset, order_sampler=ShuffleOrderSampler(8))), expected
    )


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["serial", "2"])
def test_crops_are_the_same_after_a_resume(folder, kind):
    dataset = ImageFolder(folder, CROP)
    expected = rows_of(make("serial", dataset))
    with make("2", dataset) as iterator:
        next(iterator)
        state = iterator.state_dict()
    iterator = make(kind, dataset)
    iterator.load_state_dict(state)
    assert same(rows_of(iterator), expected[4:])


@pytest.mark.processes
def test_crops_are_the_same_on_two_ranks(folder):
    dataset = ImageFolder(folder, CROP)
    expected = rows_of(make("serial", dataset))
    parts = [
        rows_of(make(kind, dataset, rank=rank, num_ranks=2)) for rank, kind in enumerate(("1", "2"))
    ]
    found = [part[n : n + 4] for n in range(0, 6, 4) for part in parts]
    found = [row for rows in found for row in rows]
    key = {row[0].tobytes() for row in expected}
    assert {row[0].tobytes() for row in found} == key


def test_crops_change_with_the_epoch(folder):
    dataset = ImageFolder(folder, CROP)
    with make("serial", dataset, repeat=True) as iterator:
        epochs = [[row for _ in range(3) for row in next(iterator)] for _ in range(2)]
    images = [{image.tobytes() for image, _ in epoch} for epoch in epochs]
    assert not images[0] & images[1]


def test_parts_of_a_dataset_have_crops(folder):
    dataset = ImageFolder(folder, CROP)
    for wrapped in (SubDataset(dataset, 2, 8), ConcatenatedDataset(dataset, dataset)):
        with make("serial", wrapped, shuffle=None) as one, make("serial", wrapped) as other:
            assert same([r for b in one for r in b], [r for b in other for r in b])


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["serial", "threads", "2"])
def test_a_subset_of_torch_has_crops(folder, kind):
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    dataset = data.Subset(ImageFolder(folder, CROP), range(N))
    assert same(rows_of(make(kind, dataset)), rows_of(make("serial", ImageFolder(folder, CROP))))


def test_bad_images_are_skipped(folder, tmp_path, files):
    (tmp_path / "cut.jpg").write_bytes(Path(files[0]).read_bytes()[:900])
    dataset = ImageFiles([*files, tmp_path / "cut.jpg"], CROP, range(N + 1))
    rows = rows_of(make("serial", dataset, on_error="skip"))
    assert sorted(label for _, label in rows) == list(range(N))
    with pytest.raises(ImageError, match=r"cut\.jpg"):
        rows_of(make("serial", dataset))


class Growing(EpochSampler):
    varies = True

    def epoch(self, number, n_examples, cuttings=()):
        return Epoch(np.arange(1 + number))


def test_an_error_of_the_draws_is_not_that_of_a_file(folder):
    # A worker does not know the epochs in such a batch.
    dataset, sampler = ImageFolder(folder, CROP), Growing(0)
    with (
        MultiprocessIterator(dataset, N, order_sampler=sampler, n_processes=1) as iterator,
        pytest.raises(RuntimeError, match="three epochs"),
    ):
        next(iterator)


@pytest.mark.processes  # by importing torch
def test_draws_elsewhere_are_those_of_the_global_generator(files, monkeypatch):
    dataset = ImageFiles(files, CROP)

    def drawn():
        return np.stack([dataset[n] for n in (0, 0, 1)])

    for name in ("torch", "numpy"):
        if name == "torch":
            seed = pytest.importorskip("torch").manual_seed
        else:
            monkeypatch.setitem(sys.modules, "torch", None)
            seed = np.random.seed
        seed(1)
        first = drawn()
        assert not np.array_equal(first[0], first[1])
        assert not np.array_equal(drawn(), first)
        seed(1)
        assert np.array_equal(drawn(), first)


def test_images_that_draw_nothing_leave_the_generators_alone(files):
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    ImageFiles(files, Resize(4))[0]
    assert np.array_equal(np.random.get_state()[1], before)


# ---- bytes of other sources


def image_and_mask(data):
    return decode(data, CROP), decode(data, CROP)


def test_an_image_and_its_mask_have_the_same_crop(files):
    dataset = TransformDataset([Path(path).read_bytes() for path in files], image_and_mask)
    for image, mask in rows_of(make("serial", dataset)):
        assert np.array_equal(image, mask)
    rng = np.random.default_rng(0)
    one, other = (decode(Path(files[0]).read_bytes(), CROP, rng=rng) for _ in range(2))
    assert not np.array_equal(one, other)


@pytest.fixture
def table(files):
    pa = pytest.importorskip("pyarrow")
    data = [Path(path).read_bytes() for path in files]
    return pa.table({"image": data, "label": list(range(N))})


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["serial", "threads", "2"])
@pytest.mark.parametrize("columns", [None, "image"])
def test_images_of_arrow_tables_are_decoded_as_examples(table, files, kind, columns):
    decoded = {"image": functools.partial(decode, transform=CROP)}
    dataset = ArrowDataset(table, columns, decode=decoded)
    expected = rows_of(make("serial", ImageFiles(files, CROP)))
    found = rows_of(make(kind, dataset))
    images = found if columns else [row["image"] for row in found]
    assert all(map(np.array_equal, images, expected))
    assert len(images) == N


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["serial", "threads", "2"])
def test_images_of_joined_tables_are_decoded_as_examples(table, files, kind):
    decoded = {"image": functools.partial(decode, transform=CROP)}
    parts = [ArrowDataset(table[rows], "image", decode=decoded) for rows in (slice(9), slice(9, N))]
    joined = ConcatenatedDataset(parts[0], ConcatenatedDataset(*parts[1:]))
    expected = rows_of(make("serial", ImageFiles(files, CROP)))
    assert all(map(np.array_equal, rows_of(make(kind, joined)), expected))
