"""PyTorch, one process: train, stop, and go on in a new process as if nothing had happened.

    python examples/train_torch.py FOLDER    # 20 steps; again, and it does the next 20

What to see: the loss falls on from call to call. Model, optimizer and the stream's place are saved together, so none is
ever ahead of the others.
"""

from __future__ import annotations

import os
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from o41td import (
    BatchStreamConfig,
    Checkpoint,
    FileSource,
    ProjectedField,
    Shuffle,
    Stage,
    open_batch_stream,
    resume_batch_stream,
)


def write_rows(path: str) -> None:
    """2000 points of 4 numbers, and what a linear rule makes of them."""
    points = np.random.default_rng(0).standard_normal((2000, 4)).astype(np.float32)
    values = points @ np.float32([1, -2, 3, 0.5])
    pq.write_table(pa.table({"point": list(points), "value": values}), path, row_group_size=200)


def main(folder: str) -> None:
    """Trains 20 steps from where the last call ended."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data, saved = f"{folder}/points.parquet", f"{folder}/model.ckpt"
    if not os.path.exists(data):
        os.makedirs(folder, exist_ok=True)
        write_rows(data)
    config = BatchStreamConfig(
        fields=[
            ProjectedField(name="point", source="point", dtype="f32", length=4),
            ProjectedField(name="value", source="value", dtype="f32"),
        ],
        stages=[
            Stage(sources=[FileSource(files=[data])], batch_size=50, shuffle=Shuffle(buffer_rows=500), infinite=True)
        ],
    )
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    if os.path.exists(saved):
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        stream = resume_batch_stream(Checkpoint.from_document(state["stream"]))
    else:
        stream = open_batch_stream(config)
    with stream:
        for _step, batch in zip(range(20), stream):
            tensors = batch.to_torch(device, non_blocking=True)
            loss = torch.nn.functional.mse_loss(model(tensors["point"])[:, 0], tensors["value"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if batch.batch_index % 5 == 0:
                print(f"batch {batch.batch_index:2}  loss {loss.item():.3f}")
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "stream": stream.state_dict()}, saved
        )


if __name__ == "__main__":
    main(sys.argv[1])
