"""The Trainer of transformers: a stream as its loader, saved in each of its checkpoints and resumed from them.

    python examples/hook_trainer.py

The Trainer makes its loader in `get_train_dataloader`; the stream stands in its place, as the Trainer takes any
iterable of batches. Told to `ignore_data_skip` it does not read again all that was trained on: the stream goes there at
once. What to see: the second run begins with the batch behind the last one of the first.
"""

from __future__ import annotations

import json
import tempfile
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers

from o41td import BatchStreamConfig, FileSource, ProjectedField, Shuffle, Stage
from o41td.torch import BatchDataset, as_iterable_dataset


class StreamTrainer(transformers.Trainer):
    """A Trainer whose `train_dataset` gives whole batches."""

    def get_train_dataloader(self) -> BatchDataset:
        """Returns the dataset itself."""
        return self.train_dataset


class SaveStream(transformers.TrainerCallback):
    """Writes where the stream is into every checkpoint; any one rank's state is enough for all."""

    def on_save(self, args: Any, state: Any, _control: Any, *, train_dataloader: BatchDataset, **_others: Any) -> None:
        """Called behind the Trainer's own saving."""
        if state.is_world_process_zero:
            with open(f"{args.output_dir}/checkpoint-{state.global_step}/stream.json", "w") as file:
                json.dump(train_dataloader.state_dict(), file)


class Line(torch.nn.Module):
    """Fits a line, and notes the first row of each batch that it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.seen: list[float] = []

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the mean square error."""
        self.seen.append(x[0].item())
        return {"loss": torch.mean((self.weight[0] * x + self.weight[1] - y) ** 2)}


def train(config: BatchStreamConfig, folder: str, steps: int, resume: str | None = None) -> list[float]:
    """Trains up to so many steps; returns the first row of each batch."""
    args = transformers.TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        save_steps=5,
        ignore_data_skip=True,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    model = Line()
    dataset = as_iterable_dataset(config)
    if resume is not None:
        with open(f"{resume}/stream.json") as file:
            dataset.load_state_dict(json.load(file))
    trainer = StreamTrainer(model=model, args=args, train_dataset=dataset, callbacks=[SaveStream()])
    trainer.train(resume_from_checkpoint=resume)
    dataset.close()
    return model.seen


def main() -> None:
    """Trains for 5 steps, from the checkpoint for 5 more, and for 10 without a break."""
    with tempfile.TemporaryDirectory() as folder:
        xs = [number / 1000 for number in range(1000)]
        pq.write_table(pa.table({"x": xs, "y": [2 * x + 1 for x in xs]}), f"{folder}/line.parquet", row_group_size=100)
        config = BatchStreamConfig(
            fields=[ProjectedField(name=name, source=name, dtype="f32") for name in ("x", "y")],
            stages=[
                Stage(
                    sources=[FileSource(files=[f"{folder}/line.parquet"])],
                    batch_size=20,
                    shuffle=Shuffle(buffer_rows=200),
                    infinite=True,
                )
            ],
        )
        begun = train(config, f"{folder}/run", 5)
        resumed = train(config, f"{folder}/run", 10, resume=f"{folder}/run/checkpoint-5")
        print(len(begun), len(resumed), begun + resumed == train(config, f"{folder}/whole", 10))


if __name__ == "__main__":
    main()
