"""Datasets of images, in directories and zip archives."""

from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastiter import datasets

Image = pytest.importorskip("PIL.Image", reason="Pillow is the extra 'image'")

MODES = ["RGB", "L", "RGBA", "P", "1", "I;16", "CMYK", "LA"]


def pixels(seed: int, channels: int = 3) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 256, (5 + seed, 4, channels)).astype(np.uint8)


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """Twelve PNG files with their archives, lists, and one JPEG."""
    path = tmp_path_factory.mktemp("images")
    (path / "sub").mkdir()
    names = [f"sub/{i}.png" for i in range(12)]
    for i, name in enumerate(names):
        Image.fromarray(pixels(i)).save(path / name)
    Image.fromarray(pixels(0)).save(path / "photo.jpg")
    (path / "paths.txt").write_text("".join(f" {name} \n" for name in names))
    (path / "pairs.txt").write_text("".join(f"{name} {i * i}\n" for i, name in enumerate(names)))
    with zipfile.ZipFile(path / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("sub/", b"")
        for name in names:
            archive.write(path / name, name)
    for number in range(3):
        with zipfile.ZipFile(path / f"part{number}.zip", "w") as archive:
            for name in names[: number * 4][-4:]:
                archive.write(path / name, name)
    return path


def chw(seed: int) -> np.ndarray:
    return pixels(seed).transpose(2, 0, 1).astype(np.float32)


def check(found: Any, seed: int, dtype: Any = np.float32) -> None:
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, chw(seed))


def check_indices(dataset: Any) -> None:
    """Twelve images, as the pixels of their numbers."""
    assert len(dataset) == 12
    for i in (0, 7, 11, -1, -12):
        check(dataset[i], i % 12)
    for found, seed in zip(dataset[9:3:-2], (9, 7, 5), strict=True):
        check(found, seed)
    for index in (12, -13):
        with pytest.raises(IndexError):
            dataset[index]


@pytest.mark.parametrize("as_file", [False, True])
def test_images(any_library, directory, as_file):
    paths = str(directory / "paths.txt") if as_file else [f"sub/{i}.png" for i in range(12)]
    check_indices(any_library.ImageDataset(paths, root=str(directory)))


@pytest.mark.parametrize("as_file", [False, True])
def test_labeled_images(any_library, directory, as_file):
    pairs = [(f"sub/{i}.png", i * i) for i in range(12)]
    dataset = any_library.LabeledImageDataset(
        str(directory / "pairs.txt") if as_file else pairs,
        str(directory),
        dtype=np.uint8,
        label_dtype=np.int64,
    )
    assert len(dataset) == 12
    image, label = dataset[-5]
    check(image, 7, np.uint8)
    assert type(label) is np.ndarray
    assert (label.dtype, label.shape, label) == (np.int64, (), 49)
    with pytest.raises(IndexError):
        dataset[12]
    default = any_library.LabeledImageDataset(pairs, str(directory))
    assert default[3][1].dtype == np.int32


def test_labels_of_any_kind(any_library, directory):
    pairs = [("photo.jpg", [1, 2]), ("sub/1.png", np.arange(3)), ("sub/2.png", 1.5)]
    dataset = any_library.LabeledImageDataset(pairs, str(directory), label_dtype=np.float32)
    assert [dataset[i][1].tolist() for i in range(3)] == [[1, 2], [0, 1, 2], 1.5]


def test_zipped_images(any_library, directory):
    dataset = any_library.ZippedImageDataset(str(directory / "all.zip"))
    check_indices(dataset)
    check(dataset.get_example("sub/5.png"), 5)
    with pytest.raises(KeyError):
        dataset.get_example("sub/none.png")


def test_images_in_several_archives(any_library, directory):
    names = [str(directory / f"part{number}.zip") for number in range(3)]
    dataset = any_library.MultiZippedImageDataset(names, dtype=np.float64)
    assert len(dataset) == 8
    for i in range(8):
        check(dataset[i], i, np.float64)
    for index in (8, -1):
        with pytest.raises(IndexError):
            dataset[index]


def test_labeled_zipped_images(any_library, directory, tmp_path):
    labels = tmp_path / "labels.txt"
    labels.write_text("sub/3.png 3\nsub/none.png 0\nsub/1.png -1\n")
    dataset = any_library.LabeledZippedImageDataset(str(directory / "all.zip"), str(labels))
    assert len(dataset) == 3
    image, label = dataset[-1]
    check(image, 1)
    assert (label.dtype, label) == (np.int32, -1)
    with pytest.raises(KeyError, match=r"sub/none\.png"):
        dataset[1]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode(any_library, tmp_path, mode):
    image = Image.fromarray(pixels(0))
    image = Image.new("I;16", (4, 5), 777) if mode == "I;16" else image.convert(mode)
    name = "image.tiff" if mode == "CMYK" else "image.png"
    image.save(tmp_path / name)
    expected = np.asarray(image)
    expected = expected[None] if expected.ndim == 2 else expected.transpose(2, 0, 1)
    for dtype in (np.float32, np.float16, np.uint8):
        found = any_library.ImageDataset([name], str(tmp_path), dtype)[0]
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, expected.astype(dtype))


def test_images_are_arrays_of_their_own(directory):
    dataset = datasets.ImageDataset(["sub/1.png"], directory, np.uint8)
    image = dataset[0]
    assert image.flags.c_contiguous
    image[:] = 0
    check(dataset[0], 1, np.uint8)


def test_jpeg(any_library, directory):
    with Image.open(directory / "photo.jpg") as image:
        expected = np.asarray(image).transpose(2, 0, 1)
    found = any_library.ImageDataset([str(directory / "photo.jpg")])[0]
    np.testing.assert_array_equal(found, expected)


def test_paths_that_are_no_strings(directory):
    dataset = datasets.ImageDataset([directory / "sub" / "4.png", Path("sub/5.png")], directory)
    check(dataset[0], 4)
    check(dataset[1], 5)


def test_relative_roots_are_those_of_the_start(directory, monkeypatch):
    monkeypatch.chdir(directory)
    made = [
        datasets.ImageDataset("paths.txt"),
        datasets.ZippedImageDataset("all.zip"),
        datasets.LabeledImageDataset("pairs.txt", "."),
    ]
    monkeypatch.chdir("/")
    for dataset in made:
        image = pickle.loads(pickle.dumps(dataset))[2]
        check(image[0] if isinstance(image, tuple) else image, 2)


@pytest.mark.parametrize("line", ["only.png", "a.png b", "a b.png 3", ""])
def test_lists_of_another_form(any_library, directory, tmp_path, line):
    path = tmp_path / "pairs.txt"
    path.write_text(f"sub/1.png 1\n{line}\n")
    with pytest.raises(ValueError):
        any_library.LabeledImageDataset(str(path), str(directory))
    with pytest.raises(ValueError):
        any_library.LabeledZippedImageDataset(str(directory / "all.zip"), str(path))


def test_errors_in_lists_tell_the_line(directory, tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("sub/1.png 1\nsub/2.png two\n")
    with pytest.raises(ValueError, match=r"line 2 of .*list\.txt .* not 'sub/2.png two'"):
        datasets.LabeledImageDataset(path)
    path.write_text("sub/1.png\n\n")
    with pytest.raises(ValueError, match=r"line 2 of .*list\.txt is empty"):
        datasets.ImageDataset(path)


def test_files_that_are_no_images(any_library, directory, tmp_path):
    (tmp_path / "text.png").write_text("no image")
    whole = (directory / "photo.jpg").read_bytes()
    (tmp_path / "half.jpg").write_bytes(whole[: len(whole) // 2])
    dataset = any_library.ImageDataset(["none.png", "text.png", "half.jpg"], str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"none\.png"):
        dataset[0]
    for index in (1, 2):
        with pytest.raises(OSError):
            dataset[index]
    with pytest.raises(FileNotFoundError):
        any_library.ZippedImageDataset(str(tmp_path / "none.zip"))
    with pytest.raises(zipfile.BadZipFile):
        any_library.ZippedImageDataset(str(tmp_path / "text.png"))


# -- archives ------------------------------------------------------------------------------------

METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("prefix", [b"", b"#!/bin/sh\n" * 50])
def test_every_compression(tmp_path, method, prefix):
    path = tmp_path / "a.zip"
    path.write_bytes(prefix)
    with zipfile.ZipFile(path, "a", method) as archive:
        for i in range(5):
            data = io.BytesIO()
            Image.fromarray(pixels(i)).save(data, "bmp")
            info = zipfile.ZipInfo(f"sub/ä{i}.bmp")
            info.extra = b"\xfe\xca\x04\x00abcd" * 40 * i  # up to more than is read along
            archive.writestr(info, data.getvalue(), method)
    with datasets.ZippedImageDataset(path) as dataset:
        assert len(dataset) == 5
        for i in range(5):
            check(dataset[i], i)
        check(dataset.get_example("sub/ä3.bmp"), 3)


def test_of_several_files_of_one_name_the_last_counts(any_library, tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        for seed in (1, 2):
            data = io.BytesIO()
            Image.fromarray(pixels(seed)).save(data, "png")
            archive.writestr("a.png", data.getvalue())
    dataset = any_library.ZippedImageDataset(str(path))
    assert len(dataset) == 2
    check(dataset[0], 2)
    check(dataset[1], 2)


def test_empty_archive(any_library, tmp_path):
    zipfile.ZipFile(tmp_path / "a.zip", "w").close()
    dataset = any_library.ZippedImageDataset(str(tmp_path / "a.zip"))
    assert len(dataset) == 0
    with pytest.raises(IndexError):
        dataset[0]


def test_an_image_that_pillow_stumbles_over(tmp_path):
    image = io.BytesIO()
    Image.fromarray(pixels(0)).save(image, "PPM")
    damaged = image.getvalue().replace(b"255", b"2-5", 1)
    (tmp_path / "a.ppm").write_bytes(damaged)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.ppm", damaged)
    for dataset, name in (
        (datasets.ImageDataset(["a.ppm"], str(tmp_path)), r"/a\.ppm"),
        (datasets.LabeledImageDataset([("a.ppm", 1)], str(tmp_path)), r"/a\.ppm"),
        (datasets.ZippedImageDataset(tmp_path / "a.zip"), r"a\.ppm in .*a\.zip"),
    ):
        with pytest.raises(OSError, match=rf"{name} cannot be decoded .*2-5"):
            dataset[0]


def entry_changed(path: Path, method: int, offset: int, code: str, change: Any) -> None:
    """An archive of one image, with a number in its directory changed."""
    image = io.BytesIO()
    Image.fromarray(pixels(0)).save(image, "BMP")
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a.bmp", image.getvalue())
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\1\2") + offset
    struct.pack_into(code, content, at, change(*struct.unpack_from(code, content, at)))
    path.write_bytes(content)


# Places in an entry of the directory.
VERSION, FLAGS, METHOD, COMPRESSED, SIZE, OFFSET = 6, 8, 10, 20, 24, 42


@pytest.mark.parametrize(
    ("method", "offset", "code", "change", "error", "match"),
    [
        (zipfile.ZIP_BZIP2, COMPRESSED, "<I", lambda size: size // 2, zipfile.BadZipFile, "damag"),
        (zipfile.ZIP_LZMA, COMPRESSED, "<I", lambda size: 3, zipfile.BadZipFile, "damaged"),
        *(
            case
            for method in METHODS
            for case in (
                (method, SIZE, "<I", lambda size: 2**32 - 2, zipfile.BadZipFile, "damaged"),
                (method, COMPRESSED, "<I", lambda n: n + 10**6, zipfile.BadZipFile, "ends after"),
                (method, FLAGS, "<H", lambda flags: flags | 1, RuntimeError, "is encrypted"),
                (method, METHOD, "<H", lambda method: 97, NotImplementedError, "method 97"),
            )
        ),
        (zipfile.ZIP_STORED, OFFSET, "<I", lambda offset: 10**6, zipfile.BadZipFile, "no file"),
        (zipfile.ZIP_STORED, OFFSET, "<I", lambda offset: 2, zipfile.BadZipFile, "no file"),
    ],
)
def test_a_damaged_entry(tmp_path, method, offset, code, change, error, match):
    entry_changed(tmp_path / "a.zip", method, offset, code, change)
    with (
        datasets.ZippedImageDataset(tmp_path / "a.zip") as dataset,
        pytest.raises(error, match=rf"a\.zip .*{match}"),
    ):
        dataset[0]


@pytest.mark.parametrize("method", METHODS)
def test_damaged_content(tmp_path, method):
    path = tmp_path / "a.zip"
    entry_changed(path, method, OFFSET, "<I", lambda offset: offset)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 255
    path.write_bytes(content)
    with (
        datasets.ZippedImageDataset(path) as dataset,
        pytest.raises(zipfile.BadZipFile, match=r"a\.bmp in .*a\.zip is damaged"),
    ):
        dataset[0]


def test_a_damaged_size_of_the_dictionary_takes_no_memory(tmp_path):
    path = tmp_path / "a.zip"
    entry_changed(path, zipfile.ZIP_LZMA, OFFSET, "<I", lambda offset: offset)
    with path.open("r+b") as file:
        file.seek(40)
        file.write(b"\xff\xff\xff\xff")
    with datasets.ZippedImageDataset(path) as dataset:
        tracemalloc.start()
        assert dataset[0].shape == (3, 5, 4)
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
        tracemalloc.stop()


def test_a_damaged_directory(tmp_path):
    entry_changed(tmp_path / "a.zip", zipfile.ZIP_STORED, VERSION, "<H", lambda version: 232)
    with pytest.raises(zipfile.BadZipFile, match=r"a\.zip cannot be read .* version 23\.2"):
        datasets.ZippedImageDataset(tmp_path / "a.zip")
    info = zipfile.ZipInfo("a.bmp")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, b"not large")
        info.file_size = 2**64 - 1
    with pytest.raises(zipfile.BadZipFile, match=r"a\.bmp in .*a\.zip is damaged"):
        datasets.ZippedImageDataset(tmp_path / "a.zip")


# -- in iterators, threads and processes ---------------------------------------------------------


def kinds(directory: Path) -> list[Any]:
    return [
        datasets.ImageDataset(directory / "paths.txt", directory),
        datasets.ZippedImageDataset(directory / "all.zip"),
        datasets.MultiZippedImageDataset([directory / "all.zip", directory / "part1.zip"]),
        datasets.LabeledZippedImageDataset(directory / "all.zip", directory / "pairs.txt"),
        datasets.LabeledImageDataset(directory / "pairs.txt", directory),
    ]


def all_of(directory: Path) -> Any:
    """Twelve tuples of one image from each kind."""
    return datasets.TupleDataset(*(datasets.SubDataset(d, 0, 12) for d in kinds(directory)))


def check_all(found: list[Any]) -> None:
    assert len(found) == 12
    for i, (plain, zipped, multi, (labeled_zipped, a), (labeled, b)) in enumerate(found):
        for image in (plain, zipped, multi, labeled_zipped, labeled):
            check(image, i)
        assert a == b == i * i


def test_in_every_iterator(make, directory):
    dataset = all_of(directory)
    check_all(dataset[:])
    iterator = make(dataset, 5, shuffle=False, repeat=False)
    check_all([example for batch in iterator for example in batch])


def test_under_every_start_method(make_started, directory):
    iterator = make_started(all_of(directory), 5, shuffle=False, repeat=False)
    check_all([example for batch in iterator for example in batch])


def test_many_threads_read_at_once(directory):
    dataset = datasets.ZippedImageDataset(directory / "all.zip")

    def read(seed: int) -> None:
        for i in np.random.RandomState(seed).randint(0, 12, 100):
            check(dataset[i], i)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))


def test_closed_archives(directory):
    for dataset in kinds(directory)[1:4]:
        image = pickle.dumps(dataset)
        with dataset:
            dataset[0]
        for _ in range(2):
            dataset.close()
        with pytest.raises(ValueError, match="closed"):
            dataset[0]
        with pickle.loads(image) as copy:
            copy[11]


PROGRAM = """
import sys
sys.modules["PIL"] = None
from fastiter.datasets import *
for kind in (ImageDataset, LabeledImageDataset, ZippedImageDataset):
    try:
        kind([])
    except ImportError as error:
        assert "pip install pillow simplejpeg" in str(error), error
    else:
        sys.exit("no error")
"""


def test_without_pillow_the_error_names_the_extra():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
