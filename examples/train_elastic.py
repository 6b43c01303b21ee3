"""PyTorch on any number of ranks: the same loss curve on 1, 2 and 4, and across a crash and a change of their number.

    python examples/train_elastic.py FOLDER                                                   # one rank
    torchrun --standalone --nproc-per-node 4 examples/train_elastic.py FOLDER --die-at 13     # four; one is killed
    torchrun --standalone --nproc-per-node 2 examples/train_elastic.py FOLDER --resume        # two go on

A step is four batches of the one order that all ranks share: each of four ranks takes one, each of two takes two, one
alone takes all four, and gradients are averaged over them. `lanes` is set, so the order does not depend on the ranks.
Model and stream are saved together every 5 steps; the state of any one rank's stream is enough for all. What to see:
the losses of a step are the same in each of the three runs, to the last digits of floating point; steps behind the last
save are done again with the same batches.
"""

from __future__ import annotations

import argparse
import os
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import distributed

from o41td import (
    BatchStream,
    BatchStreamConfig,
    Checkpoint,
    FileSource,
    ProjectedField,
    RankInfo,
    Shuffle,
    Stage,
    open_batch_stream,
    resume_batch_stream,
)

BATCHES_PER_STEP = 4
STEPS = 20
SAVE_EVERY = 5


def write_rows(path: str) -> None:
    """4000 points of 4 numbers, and what a linear rule makes of them."""
    points = np.random.default_rng(0).standard_normal((4000, 4)).astype(np.float32)
    values = points @ np.float32([1, -2, 3, 0.5])
    pq.write_table(pa.table({"point": list(points), "value": values}), path, row_group_size=250)


def config_of(path: str) -> BatchStreamConfig:
    """The stream: batches of 16 rows, in four lanes whoever reads them."""
    source = FileSource(files=[path])
    return BatchStreamConfig(
        fields=[
            ProjectedField(name="point", source="point", dtype="f32", length=4),
            ProjectedField(name="value", source="value", dtype="f32"),
        ],
        stages=[Stage(sources=[source], batch_size=16, shuffle=Shuffle(buffer_rows=500), infinite=True)],
        lanes=BATCHES_PER_STEP,
        threads=1,
    )


def train_step(model: torch.nn.Module, stream: BatchStream, world_size: int) -> float:
    """Adds up the gradients of this rank's share of a step, then of all ranks'; returns the loss over all of it."""
    total = torch.zeros(())
    for _share in range(BATCHES_PER_STEP // world_size):
        tensors = next(stream).to_torch()
        loss = torch.nn.functional.mse_loss(model(tensors["point"])[:, 0], tensors["value"]) / BATCHES_PER_STEP
        loss.backward()
        total += loss.detach()
    if world_size > 1:
        for tensor in (total, *(parameter.grad for parameter in model.parameters())):
            distributed.all_reduce(tensor)
    return total.item()


def main(folder: str, *, resume: bool, die_at: int | None) -> None:
    """Trains up to step 20."""
    place = RankInfo.from_env() if "WORLD_SIZE" in os.environ else RankInfo()
    data, saved = f"{folder}/points.parquet", f"{folder}/elastic.ckpt"
    if place.rank == 0 and not os.path.exists(data):
        write_rows(data)
    if place.world_size > 1:
        distributed.init_process_group("gloo")
        distributed.barrier()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)  # which has no state to save
    first_step = 0
    if resume:
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        first_step = state["step"]
        stream = resume_batch_stream(Checkpoint.from_document(state["stream"]), place.rank, place.world_size)
    else:
        stream = open_batch_stream(config_of(data), place.rank, place.world_size)
    with stream:
        for step in range(first_step, STEPS):
            if step == die_at and place.rank == place.world_size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            loss = train_step(model, stream, place.world_size)
            optimizer.step()
            if place.rank == 0:
                print(f"step {step:2}  loss {loss:.5f}", flush=True)
                if (step + 1) % SAVE_EVERY == 0:
                    state = {"model": model.state_dict(), "step": step + 1, "stream": stream.state_dict()}
                    torch.save(state, f"{saved}.new")
                    os.replace(f"{saved}.new", saved)
    if place.world_size > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--resume", action="store_true", help="go on from what was saved")
    parser.add_argument("--die-at", type=int, metavar="STEP", help="the last rank kills itself there")
    given = parser.parse_args()
    main(given.folder, resume=given.resume, die_at=given.die_at)
