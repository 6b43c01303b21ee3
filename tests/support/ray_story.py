"""A stream decoded by a Ray cluster of three nodes, one of which is killed midway; run as a program of its own.

Ray keeps descriptors and threads in the process that starts a cluster, so that is none that tests run in.
Usage: ray_story.py SHARD…; prints what differs from the same stream decoded on this host, which is nothing.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ray.cluster_utils import Cluster

from o41td import BatchStreamConfig, Parquet, ProjectedField, Shuffle, Stage, open_batch_stream
from sample_nodes import Scale

KILL_AT = 12


def batches_of(config: BatchStreamConfig, engine: str, cluster: Cluster | None, node: Any) -> tuple[list[Any], int]:
    """Every batch, and the digest; the node is killed on the way."""
    batches = []
    with open_batch_stream(config, engine=engine) as stream:
        for number, batch in enumerate(stream):
            if cluster is not None and number == KILL_AT:
                cluster.remove_node(node, allow_graceful=False)
            batches.append((batch["id"].tolist(), batch["scaled"].tolist()))
        return batches, stream.order_digest


def main(paths: list[str]) -> None:
    """A head that decodes nothing, and two nodes that have the resource `loader`."""
    config = BatchStreamConfig(
        fields=[
            ProjectedField(name="id", source="id", dtype="i64"),
            ProjectedField(name="scaled", source="scaled", dtype="f64"),
        ],
        stages=[
            Stage(sources=[Parquet(paths) >> Scale(3).at("loader")], batch_size=10, shuffle=Shuffle(buffer_rows=60))
        ],
        block_rows=20,
        lookahead=3,
        threads=1,
        stall_timeout_s=60,
    )
    expected, digest = batches_of(config, "local", None, None)
    store: dict[str, Any] = {"object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **store})
    try:
        nodes = [cluster.add_node(num_cpus=1, resources={"loader": 1}, **store) for _ in range(2)]
        os.environ["RAY_ADDRESS"] = cluster.address
        found, found_digest = batches_of(config, "ray", cluster, nodes[1])
    finally:
        cluster.shutdown()
    print("batches", len(found), "same rows", found == expected, "same digest", found_digest == digest)


if __name__ == "__main__":
    main(sys.argv[1:])
