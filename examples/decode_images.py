"""Image bytes to arrays in the workers: pictures in a Parquet column, batches of uint8-valued pixels out.

    python examples/decode_images.py

The pictures here are portable greymaps, which need no library; with Pillow, `pixels_of` is
`numpy.asarray(Image.open(io.BytesIO(data)).convert("L").resize((SIDE, SIDE)))`.
"""

from __future__ import annotations

import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from o41td import BatchStreamConfig, Node, Parquet, ProjectedField, Stage, open_batch_stream

SIDE = 8


class DecodeImage(Node):
    """Replaces `image`, bytes of a picture, by `pixels`, its values row by row."""

    def __init__(self, side: int) -> None:
        self.side = side

    def forward(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Decodes each picture of the rows."""
        pixels = np.stack([pixels_of(data) for data in batch["image"].to_pylist()] or [np.empty((0,), np.uint8)])
        values = pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1)), self.side * self.side)
        return pa.RecordBatch.from_arrays([values, batch["label"]], ["pixels", "label"])


def pixels_of(data: bytes) -> np.ndarray:
    """The values of a binary portable greymap."""
    _magic, width, height, _most = data.split(maxsplit=4)[:4]
    return np.frombuffer(data[-int(width) * int(height) :], np.uint8)


def main() -> None:
    """Writes pictures of one grey each, and checks what comes."""
    with tempfile.TemporaryDirectory() as folder:
        head = f"P5 {SIDE} {SIDE} 255\n".encode()
        images = [head + bytes([number % 256]) * SIDE**2 for number in range(512)]
        pq.write_table(pa.table({"image": images, "label": range(512)}), f"{folder}/images.parquet", row_group_size=128)
        config = BatchStreamConfig(
            fields=[
                ProjectedField(name="pixels", source="pixels", dtype="i32", shape=[SIDE, SIDE]),
                ProjectedField(name="label", source="label", dtype="i64"),
            ],
            stages=[Stage(sources=[Parquet(f"{folder}/images.parquet") >> DecodeImage(SIDE)], batch_size=64)],
        )
        with open_batch_stream(config) as stream:
            for batch in stream:
                assert (batch["pixels"] == (batch["label"] % 256)[:, None, None]).all()
            print(batch["pixels"].shape, batch["pixels"].dtype)


if __name__ == "__main__":
    main()
