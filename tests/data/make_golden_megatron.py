"""Writes megatron.npz: the rows of megatron-core's GPTDataset for the cases of megatron_cases.py.

Run with torch and megatron-core 0.16.1 (``pip install --no-deps megatron-core==0.16.1``) by
``PYTHONPATH=tests/support python tests/data/make_golden_megatron.py``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.utils import Split
from megatron_cases import CASES, EOD, LENGTH, write_case


def rows_of(prefix, folder, arguments):
    pad = arguments.get("pad_token_id", -1)
    tokenizer = SimpleNamespace(
        eod=arguments.get("eod_token_id", EOD), vocab_size=1000, pad=pad, unique_identifiers={}
    )
    is_valid = not arguments.get("drop_last", True)
    config = GPTDatasetConfig(
        random_seed=arguments.get("seed", 1234),
        sequence_length=LENGTH,
        tokenizer=tokenizer,
        path_to_cache=str(folder),
        reset_position_ids=arguments.get("reset_position_ids", False),
        reset_attention_mask=arguments.get("reset_attention_mask", False),
        eod_mask_loss=arguments.get("eod_mask_loss", False),
        create_attention_mask="attention_mask" in arguments.get("fields", ()),
        drop_last_partial_validation_sequence=not is_valid,
        blend=([prefix], None),
        split="1,0,0",
    )
    low = GPTDataset.build_low_level_dataset(prefix, config)
    sequences = np.array(arguments.get("sequences", range(len(low))), np.int32)
    dataset = GPTDataset(
        low,
        prefix,
        sequences,
        arguments.get("num_samples"),
        Split.valid if is_valid else Split.train,
        config,
    )
    dataset._pad_token_id = pad
    rows = []
    for i in range(len(dataset)):
        dataset.masks_and_position_ids_are_cached = False  # a padded sample spoils the loss mask
        rows.append({name: value.numpy() for name, value in dataset[i].items()})
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def main():
    golden = {}
    with tempfile.TemporaryDirectory() as folder:
        prefix = write_case(Path(folder))
        for name, arguments in CASES.items():
            for field, rows in rows_of(
                prefix, Path(folder) / name.replace(" ", "_"), arguments
            ).items():
                assert rows.dtype in (np.int64, np.float32, bool)
                small = np.packbits(rows) if rows.dtype == bool else rows.astype(np.int8)
                golden[f"{name}/{field}"] = small
    np.savez_compressed(Path(__file__).with_name("megatron.npz"), **golden)


if __name__ == "__main__":
    main()
