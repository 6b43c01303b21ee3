"""Accelerate: a stream that `save_state` saves and `load_state` brings back.

    python examples/hook_accelerate.py

The stream knows its rank by the process group, so there is no loader to `prepare`: a prepared one would deal out anew
what is dealt out already. `register_for_checkpointing` is the hook. What to see: after `load_state` the batches go on
behind those that were trained on when the state was saved.
"""

from __future__ import annotations

import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from accelerate import Accelerator

from o41td import BatchStreamConfig, FileSource, ProjectedField, Stage
from o41td.torch import as_iterable_dataset


def main() -> None:
    """Trains for 3 steps, saves, trains for 3 more, and once more from what was saved."""
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table({"x": [float(number) for number in range(100)]}), f"{folder}/numbers.parquet")
        config = BatchStreamConfig(
            fields=[ProjectedField(name="x", source="x", dtype="f32")],
            stages=[Stage(sources=[FileSource(files=[f"{folder}/numbers.parquet"])], batch_size=10)],
        )
        accelerator = Accelerator(cpu=True)
        model = torch.nn.Linear(1, 1)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4))
        dataset = as_iterable_dataset(config, convert=lambda batch: batch.to_torch(accelerator.device))
        accelerator.register_for_checkpointing(dataset)

        def train(steps: int) -> list[float]:
            seen = []
            for _step, batch in zip(range(steps), dataset):
                seen.append(batch["x"][0].item())
                accelerator.backward(model(batch["x"][:, None]).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            return seen

        print(train(3))
        accelerator.save_state(f"{folder}/state")
        print(train(3))
        accelerator.load_state(f"{folder}/state")
        print(train(3))
        dataset.close()


if __name__ == "__main__":
    main()
