"""Tokenising text in the workers, with results kept: the second epoch, and the next run, tokenise nothing.

python examples/tokenize_text.py
"""

from __future__ import annotations

import tempfile
from functools import cached_property

import pyarrow as pa
import pyarrow.parquet as pq

from o41td import BatchStreamConfig, Node, Parquet, ProjectedField, Stage, open_batch_stream

LENGTH = 16


class Tokenize(Node):
    """Adds `input_ids`: a number for each word of `text`. A real tokenizer stands in `table` as well as this one."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    @cached_property
    def table(self) -> dict[str, int]:
        """Made in each worker, once; what is expensive or cannot be sent belongs here."""
        return {word: number for number, word in enumerate(self.words, 1)}

    def forward(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Texts to numbers; 0 is a word that is not known."""
        ids = [[self.table.get(word, 0) for word in text.split()] for text in batch["text"].to_pylist()]
        return batch.append_column("input_ids", pa.array(ids, pa.list_(pa.int32())))


def main() -> None:
    """Writes a few texts, streams them, and streams them again."""
    with tempfile.TemporaryDirectory() as folder:
        texts = [f"the cat number {number} sat on the mat" for number in range(1000)]
        pq.write_table(pa.table({"text": texts}), f"{folder}/texts.parquet", row_group_size=250)
        rows = Parquet(f"{folder}/texts.parquet", columns=["text"]).named("texts").frozen()
        tokens = Tokenize(["the", "cat", "sat", "on", "mat"]).cached(f"{folder}/kept")
        config = BatchStreamConfig(
            fields=[ProjectedField(name="tokens", source="input_ids", dtype="i32", length=LENGTH, pad=-1)],
            stages=[Stage(sources=[rows >> tokens], batch_size=100)],
        )
        for _run in range(2):
            with open_batch_stream(config) as stream:
                print(sum(batch["tokens"].sum() for batch in stream))


if __name__ == "__main__":
    main()
