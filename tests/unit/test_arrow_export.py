"""Arrays as Arrow: which types they become, whose memory they are, and how long."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from o41td.arrow_export import nested_batch, stream_capsule, tensor_batch
from o41td.batch_buffers import BatchBuffers
from o41td.fields import FieldPlan

ARRAYS = {
    "id": np.arange(3, dtype=np.int64),
    "flag": np.array([True, False, True]),
    "tokens": np.arange(6, dtype=np.int32).reshape(3, 2),
    "cube": np.arange(36, dtype=np.float32).reshape(3, 2, 3, 2),
}
NESTED_TYPES = {
    "id": pa.int64(),
    "flag": pa.bool_(),
    "tokens": pa.list_(pa.int32(), 2),
    "cube": pa.list_(pa.list_(pa.list_(pa.float32(), 2), 3), 2),
}


def test_each_axis_is_a_fixed_size_list():
    """Values are columns, [2] is a list of two, [2, 3, 2] lists in lists in lists, and all values are there."""
    batch = nested_batch(ARRAYS)
    assert {field.name: field.type for field in batch.schema} == NESTED_TYPES
    assert batch.to_pydict() == {name: array.tolist() for name, array in ARRAYS.items()}


def test_tensors_are_flat_lists_that_know_their_shape():
    """`tensor_batch` names the shape of a row in the type, and pyarrow gives the arrays back."""
    batch = tensor_batch(ARRAYS)
    assert batch.schema.field("cube").type == pa.fixed_shape_tensor(pa.float32(), (2, 3, 2))
    assert batch.schema.field("id").type == pa.int64()
    for name in ("tokens", "cube"):
        assert np.array_equal(batch[name].to_numpy_ndarray(), ARRAYS[name])


@pytest.mark.parametrize("export", [nested_batch, tensor_batch])
def test_only_bools_are_copied(export):
    """Every column but the bools lies where its array does; bools are packed."""
    batch = export(ARRAYS)
    addresses = {name: batch[name].buffers()[-1].address for name in ARRAYS}
    expected = {name: array.ctypes.data for name, array in ARRAYS.items() if name != "flag"}
    assert {name: address for name, address in addresses.items() if name != "flag"} == expected
    assert batch["flag"].buffers()[1].to_pybytes()[:1] == b"\x05"  # 0b101, the first row in the lowest bit


def test_an_export_keeps_the_batchs_memory_until_it_is_released():
    """Memory is given to the next batch only when the C structs that were made of it are gone."""
    buffers = BatchBuffers([("id", "<i8", ()), ("tokens", "<i4", (8,))], batch_size=4, limit=2)
    arrays = buffers.acquire()
    arrays["tokens"][:] = 7
    schema, array = nested_batch({name: values[:3] for name, values in arrays.items()}).__arrow_c_array__()
    del arrays
    assert buffers.num_free == 0
    imported = pa.RecordBatch._import_from_c_capsule(schema, array)
    del schema, array
    assert buffers.num_free == 0
    assert imported["tokens"].to_pylist() == [[7] * 8] * 3
    del imported
    assert buffers.num_free == 1


def test_a_stream_says_its_types_before_the_first_batch_and_passes_errors_on():
    """The schema is that of the batches, the batches are read one by one, and an error has its own words."""
    fields = [
        FieldPlan(name="id", source="id", dtype="i64"),
        FieldPlan(name="flag", source="flag", dtype="bool"),
        FieldPlan(name="tokens", source="tokens", dtype="i32", shape=(2,)),
        FieldPlan(name="cube", source="cube", dtype="f32", shape=(2, 3, 2)),
    ]
    taken = []

    def next_arrays():
        taken.append(len(taken))
        if len(taken) == 3:
            raise ValueError("no third batch")
        return ARRAYS

    reader = pa.RecordBatchReader._import_from_c_capsule(stream_capsule(fields, next_arrays, None))
    assert {field.name: field.type for field in reader.schema} == NESTED_TYPES
    assert taken == []
    assert [reader.read_next_batch().num_rows for _ in range(2)] == [3, 3]
    assert taken == [0, 1]
    with pytest.raises(pa.ArrowInvalid, match="no third batch"):
        reader.read_next_batch()
