"""Images from bytes: values, modes, EXIF, decoders, and files that are damaged."""

from __future__ import annotations

import contextlib
import io
import pickle
import threading

import numpy as np
import pytest
from drawn import draw_examples
from hypothesis import given
from hypothesis import strategies as st
from photographs import photograph, saved

Image = pytest.importorskip("PIL.Image")

from PIL import ImageDraw, ImageOps  # noqa: E402

from fastiter.errors import ImageError  # noqa: E402
from fastiter.images import RandomResizedCrop, Resize, ResizeCenterCrop, decode  # noqa: E402

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

needs_simplejpeg = pytest.mark.skipif(simplejpeg is None, reason="simplejpeg is not installed")
DECODERS = ["pillow", pytest.param("simplejpeg", marks=needs_simplejpeg)]
BMP = saved(photograph(60, 80), "BMP")


def whole(data, **options):
    """The pixels of an image, without any change of its size."""
    size = Image.open(io.BytesIO(data)).size[::-1]
    return decode(data, Resize(size, layout="hwc"), **options)


def pixels_of(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def by_pillow(pixels, box, size):
    return np.asarray(Image.fromarray(pixels).crop(box).resize(size[::-1], Image.BILINEAR))


def are_close(found, expected):
    difference = np.abs(found.astype(int) - expected)
    return difference.max() <= 1 and difference.mean() < 0.3


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("seed", range(4))
def test_a_crop_is_that_of_pillow(decoder, seed):
    data = saved(photograph(90, 120, seed))
    transform = RandomResizedCrop((40, 30), flip=0.5)
    window = transform.window(90, 120, np.random.default_rng(seed))
    expected = by_pillow(pixels_of(data), window.box, (40, 30))
    expected = expected[:, ::-1] if window.flip else expected
    options = {"rng": np.random.default_rng(seed), "decoder": decoder, "scaled": False}
    found = decode(data, transform, **options)
    assert found.flags.c_contiguous
    assert are_close(found.transpose(1, 2, 0), expected)


def test_the_middle_is_that_of_the_resized_image():
    pixels = photograph(61, 83)
    found = decode(saved(pixels, "BMP"), ResizeCenterCrop(40, (31, 40), layout="hwc"))
    resized = by_pillow(pixels, (0, 0, 83, 61), (40, 54))
    assert are_close(found, resized[round(4.5) : round(4.5) + 31, 7:47])


def test_layouts_and_dtypes_have_the_same_values():
    planes = decode(BMP, Resize((20, 30)))
    assert planes.shape == (3, 20, 30)
    assert np.array_equal(decode(BMP, Resize((20, 30), layout="hwc")), planes.transpose(1, 2, 0))
    transform = Resize((20, 30), dtype="float32", mean=(0.4, 0.5, 0.6), std=0.25)
    found = decode(BMP, transform)
    assert found.dtype == np.float32
    for channel in range(3):
        assert np.array_equal(found[channel], transform.table[channel][planes[channel]])


def modes():
    photo = Image.fromarray(photograph(20, 30))
    yield "grey", saved(photo.convert("L"))
    yield "progressive", saved(photo, progressive=True)
    yield "4:4:4", saved(photo, subsampling=0)
    yield "CMYK", saved(photo.convert("CMYK"))
    yield "RGB within a JPEG", saved(photo, keep_rgb=True)
    yield "palette", saved(photo.quantize(16), "PNG")
    yield "alpha", saved(photo.convert("RGBA"), "PNG")
    yield "grey and alpha", saved(photo.convert("LA"), "PNG")
    yield "bits", saved(photo.convert("1"), "PNG")
    yield "16 bits", saved(photo.convert("I;16"), "PNG")
    yield "GIF", saved(photo, "GIF")
    yield "WebP", saved(photo, "WEBP")
    yield "BMP", saved(photo, "BMP")
    frames = [photo, photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
    yield "two frames", saved(frames[0], "GIF", save_all=True, append_images=frames[1:])


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(("name", "data"), list(modes()), ids=lambda value: str(value)[:20])
def test_images_of_each_mode_become_rgb_as_by_pillow(name, data, decoder):
    assert np.array_equal(whole(data, decoder=decoder), pixels_of(data))


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("orientation", [None, *range(10)])
def test_orientations_are_those_of_pillow(orientation, decoder):
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    data = saved(photograph(24, 37), exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    transform = Resize(upright.size[::-1], layout="hwc")
    assert np.array_equal(decode(data, transform, exif=True, decoder=decoder), np.asarray(upright))
    assert np.array_equal(whole(data, decoder=decoder), pixels_of(data))
    small = decode(data, Resize(6, layout="hwc"), exif=True, decoder=decoder)
    assert (small.shape[0] > small.shape[1]) == (upright.height > upright.width)
    expected = np.asarray(upright.resize(small.shape[1::-1], Image.BILINEAR))
    assert np.abs(small.astype(int) - expected).mean() < 8  # of an image at a smaller scale


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("exif", [False, True])
def test_a_tiff_is_turned_once(orientation, exif):
    """Pillow turns it when it is read, whether that is asked for or not."""
    data = saved(photograph(24, 37), "TIFF", tiffinfo={0x0112: orientation})
    upright = Image.open(io.BytesIO(data)).convert("RGB")
    assert (upright.height > upright.width) == (orientation > 4)
    found = decode(data, Resize(upright.size[::-1], layout="hwc"), exif=exif)
    assert np.array_equal(found, np.asarray(upright))


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    ("size", "scale"), [(200, 1), (199, 1), (100, 2), (99, 2), (50, 4), (25, 8), (3, 8)]
)
def test_an_image_is_scaled_where_the_crop_stays_as_large(size, scale, decoder, monkeypatch):
    """The values are those of Pillow, which resizes what it has decoded at that scale."""
    data = saved(photograph(200, 333))
    scaled = Image.open(io.BytesIO(data))
    scaled.draft("RGB", (333 // scale, 200 // scale))
    assert scaled.size == (-(-333 // scale), 200 // scale)
    pixels = np.asarray(scaled)
    width = int(size * 333 / 200)
    box = (0, 0, 333 / scale, 200 / scale)
    expected = np.asarray(Image.fromarray(pixels).resize((width, size), Image.BILINEAR, box=box))
    found = decode(data, Resize(size, layout="hwc"), decoder=decoder)
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected)[:, :-1].max() <= 2
    if scale == 1:
        full = decode(data, Resize(size, layout="hwc"), decoder=decoder, scaled=False)
        assert np.array_equal(found, full)


@given(st.integers(0, 2**32), st.booleans())
@draw_examples(30)
def test_the_scale_does_not_change_the_crop(seed, is_large):
    """A square in the middle of the crop is where it is in the crop of the full image."""
    image = Image.new("RGB", (640, 480))
    ImageDraw.Draw(image).rectangle((300, 220, 340, 260), fill=(255, 255, 255))
    data = saved(image)
    transform = RandomResizedCrop(60 if is_large else 30, scale=(0.5, 1.0), flip=0.5)
    full, scaled = (
        decode(data, transform, rng=np.random.default_rng(seed), scaled=scaled)[0].astype(float)
        for scaled in (False, True)
    )
    for axis in (0, 1):
        places = [(m.sum(axis=axis) * np.arange(len(m))).sum() / m.sum() for m in (full, scaled)]
        assert abs(places[0] - places[1]) < 0.1


@needs_simplejpeg
def test_the_decoders_agree_at_each_scale():
    for size in ((150, 200), (61, 93), (17, 400)):
        data = saved(photograph(*size))
        for side in (2, 8, 16):
            arrays = [decode(data, Resize(side), decoder=name) for name in ("pillow", "simplejpeg")]
            assert np.array_equal(*arrays)


# ---- what is no image


def bad_files():
    jpeg = saved(photograph(50, 60))
    yield "nothing", b""
    yield "one byte", b"\xff"
    yield "a marker", b"\xff\xd8"
    yield "no image", b"hello " * 100
    yield "half", jpeg[: len(jpeg) // 2]
    yield "without its end", jpeg[:-200]
    yield "zero bytes", jpeg[:600] + bytes(len(jpeg) - 600)
    png = saved(photograph(50, 60), "PNG")
    yield "half of a PNG", png[: len(png) // 2]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(("name", "data"), list(bad_files()), ids=lambda value: str(value)[:16])
def test_a_bad_file_is_an_error(name, data, decoder):
    with pytest.raises(ImageError) as caught:
        decode(data, Resize(10), decoder=decoder)
    assert isinstance(caught.value, OSError)
    assert caught.value.path is None
    assert caught.value.reason in str(caught.value)
    assert caught.value.__cause__ is not None
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.reason) == (
        ImageError,
        str(caught.value),
        caught.value.reason,
    )


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_bomb_is_an_error_before_it_takes_memory(kind, decoder, monkeypatch):
    data = saved(photograph(50, 60), kind)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1500)
    assert decode(data, Resize(10), decoder=decoder).shape == (3, 10, 12)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1499)
    with pytest.raises(ImageError, match="DecompressionBombError"):
        decode(data, Resize(10), decoder=decoder)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    decode(data, Resize(10), decoder=decoder)


def test_a_result_may_be_a_bomb():
    with pytest.raises(ImageError, match="65535"):
        decode(saved(photograph(1, 50)), Resize(65_535))


@pytest.mark.parametrize("data", ["text", None, 3, np.zeros((4, 4))[:, ::2]], ids=repr)
def test_other_data_is_an_error_of_its_type(data):
    with pytest.raises(TypeError, match="data"):
        decode(data, Resize(3))


def test_all_that_has_bytes_is_decoded():
    expected = decode(BMP, Resize(9))
    for kind in (bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)):
        assert np.array_equal(decode(kind(BMP), Resize(9)), expected)


def test_arguments_are_checked():
    with pytest.raises(TypeError, match="callable="):
        decode(BMP, lambda image: image)
    with pytest.raises(ValueError, match="decoder"):
        decode(BMP, Resize(3), decoder="opencv")
    with pytest.raises(TypeError, match="scaled"):
        decode(BMP, Resize(3), scaled="yes")
    with pytest.raises(TypeError, match="rng"):
        decode(BMP, Resize(3), rng=3)
    with pytest.raises(TypeError, match="callable"):
        decode(BMP, Resize(3), callable=3)


@pytest.mark.skipif(simplejpeg is not None, reason="simplejpeg is installed")
def test_a_decoder_that_is_not_installed_is_an_error():
    with pytest.raises(ImportError, match="pip install simplejpeg"):
        decode(BMP, Resize(3), decoder="simplejpeg")


def damaged(data, seed):
    """Bytes changed, cut out, or doubled."""
    rng = np.random.default_rng(seed)
    changed = bytearray(data)
    for _ in range(rng.integers(1, 8)):
        place = int(rng.integers(2, len(changed)) if rng.random() < 0.5 else rng.integers(2, 700))
        kind = rng.integers(3)
        if kind == 0:
            changed[place : place + 1] = rng.bytes(1)
        elif kind == 1:
            del changed[place : place + int(rng.integers(1, 50))]
        else:
            changed[place:place] = changed[place : place + int(rng.integers(1, 50))]
    return bytes(changed)


def tries(decoder, seeds):
    files = [
        saved(photograph(40, 56)),
        saved(photograph(33, 47), progressive=True),
        saved(Image.fromarray(photograph(40, 30)).convert("L")),
        saved(photograph(16, 16), subsampling=0, restart_marker_blocks=1),
    ]
    n_errors = 0
    for seed in seeds:
        data = damaged(files[seed % len(files)], seed)
        try:
            found = decode(data, Resize(5), decoder=decoder, exif=seed % 3 == 0)
        except ImageError:
            n_errors += 1
        else:
            assert found.shape[0] == 3
    return n_errors


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("decoder", DECODERS)
def test_damaged_files_are_errors_or_images(decoder):
    assert 20 < tries(decoder, range(200)) < 200


@pytest.mark.stress
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("decoder", DECODERS)
def test_many_damaged_files_are_errors_or_images(decoder):
    assert tries(decoder, range(200, 20_000)) > 0


def test_threads_decode_beside_each_other():
    files = [saved(photograph(80 + 10 * n, 120, n)) for n in range(4)]
    expected = [whole(data) for data in files]
    wrong = []

    def run(n):
        for _ in range(20):
            if not np.array_equal(whole(files[n]), expected[n]):
                wrong.append(n)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_array_is_kept_when_the_next_image_is_decoded():
    first = decode(saved(photograph(50, 60, 1)), Resize((50, 60)))
    before = first.copy()
    with contextlib.suppress(ImageError):
        decode(saved(photograph(50, 60, 2))[:-300], Resize((50, 60)))
    decode(saved(photograph(50, 60, 3)), Resize((50, 60)))
    assert np.array_equal(first, before)
