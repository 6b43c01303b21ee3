"""Lightning: a stream as the trainer's data, saved in its checkpoints and resumed from them in the middle of an epoch.

    python examples/hook_lightning.py

The dataset is given to `fit` as it is. Lightning calls its `state_dict` where it saves and its `load_state_dict` where
it resumes. A stage without an end has no length, and where there is no length Lightning fetches one batch ahead, hence
`ahead=1`. What to see: the second run begins with the batch behind the last one of the first.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from typing import Any

import lightning
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from o41td import BatchStreamConfig, FileSource, ProjectedField, Shuffle, Stage
from o41td.torch import as_iterable_dataset


class Line(lightning.LightningModule):
    """Fits a line, and notes the first row of each batch that it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.seen: list[float] = []

    def training_step(self, batch: dict[str, torch.Tensor], _batch_index: int) -> torch.Tensor:
        """Returns the mean square error."""
        self.seen.append(batch["x"][0].item())
        return torch.mean((self.weight[0] * batch["x"] + self.weight[1] - batch["y"]) ** 2)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain descent."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(folder: str, steps: int) -> lightning.Trainer:
    """A trainer that is silent, stays on the CPU, and ends after so many steps."""
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return lightning.Trainer(max_steps=steps, accelerator="cpu", default_root_dir=folder, **quiet)


def main() -> None:
    """Trains for 5 steps, and from the checkpoint for 5 more."""
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
        first = trainer(folder, 5)
        dataset = as_iterable_dataset(config, ahead=1)
        model = Line()
        first.fit(model, dataset)
        first.save_checkpoint(f"{folder}/line.ckpt")
        dataset.close()

        again = Line()
        dataset = as_iterable_dataset(config, ahead=1)
        trainer(folder, 10).fit(again, dataset, ckpt_path=f"{folder}/line.ckpt")
        dataset.close()
        dataset = as_iterable_dataset(config)
        expected = [batch["x"][0].item() for _step, batch in zip(range(10), dataset)]
        dataset.close()
        print(len(model.seen), len(again.seen), model.seen + again.seen == expected)


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    main()
