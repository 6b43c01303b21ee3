"""Serving what was trained: requests go through the projection that training went through.

    python examples/serve_model.py

A model is trained on batches of a stream, and answers JSON records over HTTP. `config.project` makes of a record the
arrays that a batch would hold of it: the same padding, the same cutting, the same refusals. What to see: a record of
the training data gets over HTTP the score it had in its batch, and one that does not fit is refused with the
reason.
"""

from __future__ import annotations

import json
import tempfile
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from o41td import BatchStreamConfig, FileSource, O41Error, ProjectedField, Stage, open_batch_stream

SCHEMA = pa.schema([("clicks", pa.list_(pa.int64())), ("age", pa.int64())])


def scores_of(weights: np.ndarray, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """What the model says of projected rows."""
    return arrays["clicks"] @ weights + arrays["age"] / 100


def server_of(config: BatchStreamConfig, weights: np.ndarray) -> HTTPServer:
    """A server that answers a record with its score, and what is no record with the reason."""

    class Scorer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Scores the record in the body."""
            record = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                arrays = config.project(pa.RecordBatch.from_pylist([record], schema=SCHEMA))
                status, answer = 200, {"score": float(scores_of(weights, arrays)[0])}
            except (O41Error, pa.ArrowException) as error:
                status, answer = 400, {"error": str(error)}
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_arguments: object) -> None:
            """Says nothing on stderr."""

    return HTTPServer(("127.0.0.1", 0), Scorer)


def ask(server: HTTPServer, record: dict[str, object]) -> dict[str, object]:
    """Sends a record to the server."""
    url = f"http://127.0.0.1:{server.server_port}/"
    try:
        with urllib.request.urlopen(url, json.dumps(record).encode()) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return json.load(error)


def main() -> None:
    """Trains, serves, asks."""
    with tempfile.TemporaryDirectory() as folder:
        records = [{"clicks": list(range(row % 7)), "age": 20 + row % 50} for row in range(400)]
        pq.write_table(pa.Table.from_pylist(records, schema=SCHEMA), f"{folder}/clicks.parquet")
        config = BatchStreamConfig(
            fields=[
                ProjectedField(name="clicks", source="clicks", dtype="f64", length=4, pad=-1),
                ProjectedField(name="age", source="age", dtype="i32"),
            ],
            stages=[Stage(sources=[FileSource(files=[f"{folder}/clicks.parquet"])], batch_size=100)],
        )
        weights = np.zeros(4)
        with open_batch_stream(config) as stream:
            for batch in stream:
                weights += batch["clicks"].mean(axis=0) / 10  # a model like any other
            stream.seek(0)
            trained = scores_of(weights, next(stream).arrays())
    with server_of(config, weights) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        served = [ask(server, record)["score"] for record in records[:5]]
        print(np.allclose(served, trained[:5], rtol=1e-12))
        print(ask(server, {"clicks": [1], "age": 2**40})["error"])
        server.shutdown()


if __name__ == "__main__":
    main()
