"""Fine-tuning of a causal language model on packed documents, with transformers' Trainer.

A row of `TokenDataset` holds several documents, with hardly any padding. `position_ids` begin anew
with each of them, from which models of transformers see that tokens attend to their own document
only; so they do without an attention mask and without a cache, which Trainer switches off. They
shift labels by themselves: `for_transformers` has `input_ids` as labels, and -100 where a document
begins. In the end the loss of rows is that of the documents one by one.

The documents here count, and the model is small; others come from a `datasets.Dataset` of lists of
tokens, and from the hub::

    python examples/packed_documents.py
"""

from __future__ import annotations

import tempfile

import numpy as np
import torch
from torch.utils.data import default_collate
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from fastiter.tokens import TokenDataset
from fastiter.torch import DataLoader, as_default

N_TOKENS = 32
LENGTH = 64  # of a row


def counting(rng: np.random.Generator) -> list[int]:
    """A document of 2 to 40 numbers, in steps of 1 to 3."""
    start, step, n = rng.integers((N_TOKENS, 1, 2), (N_TOKENS + 1, 4, 41))
    return ((start + step * np.arange(n)) % N_TOKENS).tolist()


def train(model: LlamaForCausalLM, rows: TokenDataset, folder: str) -> None:
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=3,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        dataloader_num_workers=2,
        remove_unused_columns=False,  # there are none
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    with as_default():  # Trainer's loaders are fastiter's
        Trainer(model, arguments, train_dataset=rows, data_collator=default_collate).train()


def summed_loss(model: LlamaForCausalLM, dataset: TokenDataset, batch_size: int) -> float:
    """The sum over all labels."""
    total = 0.0
    with torch.no_grad():
        for batch in DataLoader(dataset, batch_size):
            total += model(**batch, use_cache=False, num_items_in_batch=1).loss.item()
    return total


def main() -> None:
    rng = np.random.default_rng(0)
    documents = [counting(rng) for _ in range(200)]
    rows = TokenDataset.for_transformers(documents, LENGTH, packing="bfd", seed=0)
    single = TokenDataset.for_transformers(documents)

    sizes = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": LENGTH}
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=N_TOKENS, num_hidden_layers=2, num_attention_heads=2, **sizes)
    )
    n_labels = sum(len(document) - 1 for document in documents)
    print(f"{len(single)} documents in {len(rows)} rows, {rows.lengths.mean() / LENGTH:.1%} full")
    print(f"loss {summed_loss(model, rows, 4) / n_labels:.3f}")
    with tempfile.TemporaryDirectory() as folder:
        train(model, rows, folder)
    model.eval()
    of_rows, of_documents = summed_loss(model, rows, 4), summed_loss(model, single, 1)
    print(f"loss {of_rows / n_labels:.3f}")
    print(f"summed: rows {of_rows:.3f}, documents {of_documents:.3f}")


if __name__ == "__main__":
    main()
