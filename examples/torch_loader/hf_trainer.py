"""The Trainer of Hugging Face's transformers, and the one line that has it use fastiter's loader.

`Trainer` has Accelerate build a loader of torch's class, and another one to skip batches when it
resumes. After the first line of `main` these are fastiter's, for training and evaluation.
Start it, kill it, and start it again with the same folder, with another number of workers if you
like: it trains on exactly the batches that were missing::

    python examples/torch_loader/hf_trainer.py /tmp/trainer
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from fastiter.torch import patch


class Sums(Dataset):
    """Sequences of numbers below 16, and whether their sum is odd."""

    def __len__(self) -> int:
        return 120

    def __getitem__(self, i: int) -> dict[str, Any]:
        tokens = torch.randint(16, (6,), generator=torch.Generator().manual_seed(i))
        return {"index": i, "input_ids": tokens, "labels": int(tokens.sum()) % 2}


class PrintingTrainer(Trainer):
    """Prints what it trains on."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], *rest: Any, **options: Any) -> Any:
        indices = inputs.pop("index").tolist()
        loss = super().compute_loss(model, inputs, *rest, **options)
        epoch, batch = divmod(self.state.global_step, 15)
        print(f"epoch {epoch} batch {batch} {indices} {loss.item()!r}", flush=True)
        return loss


def main(folder: Path, num_workers: int) -> None:
    patch()  # loaders of torch's class are fastiter's from now on

    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=3,
        per_device_train_batch_size=8,
        dataloader_num_workers=num_workers,
        save_steps=5,
        remove_unused_columns=False,
        use_cpu=True,
        report_to="none",
        logging_strategy="no",
        disable_tqdm=True,
    )
    sizes = {"hidden_size": 16, "intermediate_size": 16, "max_position_embeddings": 8}
    config = BertConfig(vocab_size=16, num_hidden_layers=1, num_attention_heads=2, **sizes)
    torch.manual_seed(0)
    trainer = PrintingTrainer(
        BertForSequenceClassification(config), arguments, train_dataset=Sums()
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the checkpoints are, or will be")
    parser.add_argument("--num-workers", type=int, default=2)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    main(arguments.folder, arguments.num_workers)
