"""Cases that compare megatron-core's GPTDataset and `MegatronDataset`: files, and arguments."""

from __future__ import annotations

import struct

import numpy as np

EOD = 7
#: Arguments of MegatronDataset, by name.
CASES = {
    "one epoch": {},
    "several epochs": {"num_samples": 150, "seed": 3},
    "a short last epoch": {"num_samples": 70, "seed": 4},
    "a subset": {"sequences": range(5, 25), "num_samples": 40},
    "valid": {"drop_last": False, "sequences": range(12, 31)},
    "positions": {"reset_position_ids": True, "eod_token_id": EOD},
    "all flags, valid": {
        "reset_position_ids": True,
        "reset_attention_mask": True,
        "eod_mask_loss": True,
        "eod_token_id": EOD,
        "drop_last": False,
        "fields": ("tokens", "labels", "attention_mask", "loss_mask", "position_ids"),
    },
    "a padding token": {"pad_token_id": 3, "drop_last": False, "eod_token_id": EOD},
}
LENGTH = 16


def write_index(prefix, tokens, sizes, dtype):
    """Files as megatron-core's IndexedDatasetBuilder writes them."""
    code = {np.int32: 4, np.int64: 5, np.uint16: 8}[dtype]
    sizes = np.asarray(sizes, np.int32)
    places = np.cumsum([0, *sizes[:-1]], dtype="<i8") * np.dtype(dtype).itemsize
    index = np.arange(len(sizes) + 1, dtype="<i8")
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(sizes), len(index)))
        file.write(sizes.tobytes() + places.tobytes() + index.tobytes())
    np.asarray(tokens).astype(dtype).tofile(f"{prefix}.bin")
    return str(prefix)


def write_case(folder):
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 60, 40)
    return write_index(folder / "data", rng.integers(0, 50, sizes.sum()), sizes, np.uint16)
