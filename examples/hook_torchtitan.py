"""torchtitan: a stream as the trainer's data loader, in its distributed checkpoints.

    python examples/hook_torchtitan.py

torchtitan builds the loader out of its config and hands it rank, world size, sequence length and batch size; the loader
gives (inputs, labels) and has a state. `StreamLoader` is the whole of it; in the trainer's config its place is
`dataloader=StreamLoader.Config(dataset_path="tokens.parquet")`. What to see: the loader is saved as torchtitan saves
it, by `torch.distributed.checkpoint`, and a new one goes on behind the batches that were read.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.distributed import checkpoint
from torchtitan.components.dataloader import BaseDataLoader

from o41td import BatchStreamConfig, FileSource, ProjectedField, Stage
from o41td.torch import as_iterable_dataset


class StreamLoader(BaseDataLoader):
    """Tokens of `dataset_path`, and the same moved on by one."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """What is set in torchtitan's config."""

        column: str = "tokens"

    def __init__(
        self, config: Config, *, dp_rank: int, dp_world_size: int, seq_len: int, local_batch_size: int, **_others: Any
    ) -> None:
        field = ProjectedField(name="tokens", source=config.column, dtype="i64", length=seq_len + 1, pad=0)
        source = FileSource(files=[config.dataset_path])
        stage = Stage(sources=[source], batch_size=local_batch_size, infinite=True)
        self.dataset = as_iterable_dataset(BatchStreamConfig(fields=[field], stages=[stage]), dp_rank, dp_world_size)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Yields (inputs, labels), [local_batch_size, seq_len] each."""
        for batch in self.dataset:
            yield {"input": batch["tokens"][:, :-1]}, batch["tokens"][:, 1:]

    def state_dict(self) -> dict[str, Any]:
        """The stream's state: the same on all ranks."""
        return self.dataset.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes to where the state was taken."""
        self.dataset.load_state_dict(state_dict)


def main() -> None:
    """Reads 3 batches, saves, and reads 2 more with a new loader."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [list(range(row * 10, row * 10 + 5)) for row in range(8)]
        pq.write_table(pa.table({"tokens": rows}), f"{folder}/tokens.parquet")
        loader_config = StreamLoader.Config(dataset_path=f"{folder}/tokens.parquet")

        def build() -> StreamLoader:
            return loader_config.build(dp_rank=0, dp_world_size=1, tokenizer=None, seq_len=4, local_batch_size=1)

        loader = build()
        for _step, (inputs, labels) in zip(range(3), loader):
            print(inputs["input"].tolist(), labels.tolist())
        checkpoint.save({"dataloader": loader}, checkpoint_id=f"{folder}/saved")
        loader.dataset.close()

        loader = build()
        checkpoint.load({"dataloader": loader}, checkpoint_id=f"{folder}/saved")
        for _step, (inputs, labels) in zip(range(2), loader):
            print(inputs["input"].tolist(), labels.tolist())
        loader.dataset.close()


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    main()
