"""Bad data and bad use: every batch before it arrives, then one error that says where; asking again says the same."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loader_processes import processes_of_loaders
from o41td import (
    BatchStream,
    ChangedDataError,
    Checkpoint,
    ConfigError,
    CorruptDataError,
    DataError,
    FileSource,
    MemoryBoundError,
    MissingShardError,
    O41Error,
    ProjectedField,
    SchemaError,
    ShardFile,
    StreamClosedError,
    ValueRefusedError,
    open_batch_stream,
    resume_batch_stream,
)
from shard_writer import damage_row_group
from stream_reference import ID_ONLY, Reference, ids_of, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")


def _ids_until_error(stream: BatchStream) -> tuple[list[int], O41Error]:
    """What arrives, and the error behind it, which comes again on every later next()."""
    batches: list[list[int]] = []
    with pytest.raises(O41Error) as caught:
        batches.extend(batch["id"].tolist() for batch in stream)
    for _ in range(3):
        with pytest.raises(type(caught.value)) as again:
            stream.next()
        assert str(again.value) == str(caught.value)
    return [row_id for batch in batches for row_id in batch], caught.value


@pytest.mark.parametrize("block_rows", [None, 16])
def test_every_batch_before_a_corrupt_row_group_arrives_then_the_error(write_shards, open_stream, block_rows):
    """48 rows before shard 2 of 3's damaged row group arrive, whatever shares its slot; a seek goes on behind it."""
    paths = write_shards([32, 48, 32], row_group_rows=16)
    damage_row_group(paths[1], 1)
    config = stream_config(stage_of(paths), threads=2, block_rows=block_rows)
    stream = open_stream(config)
    ids, error = _ids_until_error(stream)
    assert isinstance(error, CorruptDataError)
    assert ids == list(range(48))
    assert (error.source, error.shard, error.row_group) == ("stage0/source0", str(paths[1]), 1)
    assert str(paths[1]) in str(error)
    assert repr(pickle.loads(pickle.dumps(error))) == repr(error)
    checkpoint = stream.checkpoint()
    assert checkpoint.cursor == ((0, 6),)
    stream.seek(8)  # behind the damage
    assert ids_of(list(stream)) == list(range(64, 112))
    stream.seek(0)
    assert _ids_until_error(stream)[0] == list(range(48))
    with open_batch_stream(config, rank=0) as other:
        other.load_state_dict(checkpoint.to_document())
        assert _ids_until_error(other)[0] == []


def test_figures_are_there_after_an_error(write_shards, open_stream):
    """stats() answers when a shard is bad: the coordinator is well."""
    paths = write_shards([8])
    damage_row_group(paths[0], 0)
    stream = open_stream(stream_config(stage_of(paths)))
    _ids_until_error(stream)
    assert stream.stats()["batches"] == 0


def test_a_corrupt_row_group_under_a_shuffle_lets_everything_before_it_through(write_shards, open_stream):
    """Which batches come before a damaged row group follows from the order alone, for any number of workers."""
    paths = write_shards([64, 64, 64], row_group_rows=16)
    config = stream_config(stage_of(paths, buffer_rows=32), block_rows=16)
    reference = Reference(config)
    damage_row_group(paths[1], 2)
    hurt = [n for n in range(24) if any(shard == 1 and 32 <= row < 48 for _, shard, row in reference.coordinates(n))]
    stream = open_stream(config)
    for number in range(hurt[0]):
        reference.check(stream.next(), number=number)
    assert isinstance(_ids_until_error(stream)[1], CorruptDataError)
    stream.seek(hurt[-1] + 1)
    reference.check_rest(stream, position=hurt[-1] + 1)


def test_a_value_that_does_not_fit_is_an_error_with_its_row(tmp_path, open_stream):
    """L9: 2^31 in row 21 of an int32 field: every batch before it arrives; shard, row, column and value are named."""
    values = [*range(21), 2**31, *range(22, 40)]
    pq.write_table(pa.table({"id": pa.array(values, pa.int64())}), tmp_path / "a.parquet", row_group_size=8)
    fields = [ProjectedField(name="id", dtype="i32")]
    stream = open_stream(stream_config(stage_of([tmp_path / "a.parquet"], batch_size=4), fields=fields))
    ids, error = _ids_until_error(stream)
    assert isinstance(error, ValueRefusedError)
    assert isinstance(error, ValueError)
    assert ids == list(range(20))  # its row group's first rows among them
    assert (error.shard, error.row, error.column, error.value) == (str(tmp_path / "a.parquet"), 21, "id", "2147483648")


def test_a_missing_file_is_refused_at_open(write_shards, tmp_path):
    """A path, a glob and a folder that lead to nothing, and a dangling link: each is named."""
    paths = write_shards([8])
    (tmp_path / "empty").mkdir()
    (tmp_path / "link.parquet").symlink_to(tmp_path / "nowhere")
    for wrong, kind in (
        (tmp_path / "none.parquet", MissingShardError),
        (tmp_path / "link.parquet", MissingShardError),
        (tmp_path / "none-*.parquet", ConfigError),
        (tmp_path / "empty", ConfigError),
    ):
        with pytest.raises(kind) as caught:
            open_batch_stream(stream_config(stage_of([*paths, wrong])))
        assert str(wrong) in str(caught.value)
        assert kind is ConfigError or isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ({"di": pa.array([1, 2])}, "id"),
        ({"id": pa.array(["1", "2"])}, "string"),
        ({"id": pa.array([[1], [2]])}, "list"),
        ({"id": pa.array([0.5, 1.5])}, None),
    ],
    ids=["lacks the column", "text", "a list", "fractions"],
)
def test_schema_drift_is_refused_at_open_naming_shard_and_column(write_shards, tmp_path, open_stream, column, told):
    """L5: the third of three shards has another `id`. A type that can hold integers passes."""
    odd = tmp_path / "odd.parquet"
    pq.write_table(pa.table(column), odd)
    config = stream_config(stage_of([*write_shards([8, 8]), odd]), fields=ID_ONLY)
    if told is None:
        ids, error = _ids_until_error(open_stream(config))
        assert ids == list(range(16))
        assert (error.shard, error.row, error.column) == (str(odd), 0, "id")
        return
    with pytest.raises(SchemaError, match=told) as caught:
        open_batch_stream(config)
    assert (caught.value.shard, caught.value.column) == (str(odd), "id")


def test_several_bad_shards_are_all_told_at_open(write_shards, tmp_path):
    """Not Parquet, cut short, empty, a pipe nobody writes to: refused in bounded time, with a note of the others."""
    good = write_shards([8, 64])
    bad = [tmp_path / name for name in ("text.parquet", "cut.parquet", "empty.parquet", "pipe.parquet")]
    bad[0].write_text("this is no Parquet file")
    bad[1].write_bytes(good[1].read_bytes()[:-20])
    bad[2].touch()
    os.mkfifo(bad[3])
    with pytest.raises(CorruptDataError) as caught:
        open_batch_stream(stream_config(stage_of([*good, *bad])))
    told = str(caught.value) + "".join(caught.value.__notes__)
    assert all(str(path) in told for path in bad)
    assert not any(str(path) in told for path in good)


def test_a_shard_cut_short_during_the_run_is_an_error_not_a_signal(write_shards, open_stream):
    """J13: truncated behind the first batch: what is before arrives, then an error names it; no process died."""
    paths = write_shards([64, 4000], row_group_rows=50)
    stream = open_stream(stream_config(stage_of(paths), block_rows=50))
    pids = {process.pid for process in processes_of_loaders()}
    stream.next()
    os.truncate(paths[1], 1000)
    ids, error = _ids_until_error(stream)
    assert isinstance(error, DataError)
    assert error.shard == str(paths[1])
    assert ids == list(range(8, 8 + len(ids)))
    assert len(ids) >= 56
    assert {process.pid for process in processes_of_loaders()} == pids


@pytest.mark.parametrize("how", ["rename", "rewrite", "delete", "touch"])
def test_a_shard_replaced_during_the_run_is_refused(write_shards, open_stream, how):
    """J7: other bytes under the same name, however they came there: no row of the new file is ever delivered."""
    paths = write_shards([64, 4000], row_group_rows=50)
    other = write_shards([4000], name="other", first_id=100_000, row_group_rows=50)[0]
    stream = open_stream(stream_config(stage_of(paths), block_rows=50))
    stream.next()
    if how == "rename":
        other.rename(paths[1])
    elif how == "rewrite":
        shutil.copyfile(other, paths[1])
    elif how == "delete":
        paths[1].unlink()
    else:
        os.utime(paths[1])
    ids, error = _ids_until_error(stream)
    assert ids == list(range(8, 8 + len(ids)))
    assert isinstance(error, MissingShardError if how == "delete" else ChangedDataError)
    assert error.shard == str(paths[1])


def test_data_changed_between_checkpoint_and_resume_is_refused_by_name(write_shards, tmp_path):
    """G3: rewritten with the same row count, removed, renamed: each is named. A new time on the same bytes is fine."""
    paths = write_shards([32, 32, 32])
    with open_batch_stream(stream_config(stage_of(paths))) as stream:
        stream.next()
        checkpoint = stream.checkpoint()
    os.utime(paths[0])
    with resume_batch_stream(checkpoint) as stream:
        assert ids_of([stream.next()]) == list(range(8, 16))
    whole = paths[1].read_bytes()
    other = write_shards([32], name="other", first_id=500)[0]
    shutil.copyfile(other, paths[1])
    with pytest.raises(ChangedDataError) as caught:
        resume_batch_stream(checkpoint)
    assert str(paths[1]) in str(caught.value)
    assert str(paths[0]) not in str(caught.value)
    paths[1].write_bytes(whole)
    paths[2].rename(tmp_path / "renamed.parquet")
    with pytest.raises(MissingShardError) as missing:
        resume_batch_stream(checkpoint)
    assert missing.value.shard == str(paths[2])


def test_a_shard_added_later_changes_nothing(write_shards, open_stream):
    """A checkpoint carries its shard list: a glob that matches more today resumes on what it matched then."""
    folder = write_shards([16, 16])[0].parent
    with open_batch_stream(stream_config(stage_of([folder / "*.parquet"]))) as stream:
        stream.next()
        checkpoint = stream.checkpoint()
    write_shards([16], name="more", first_id=900)[0].rename(folder / "part-00000a.parquet")
    with resume_batch_stream(checkpoint) as stream:
        assert ids_of(list(stream)) == list(range(8, 32))


def test_what_the_config_states_of_a_shard_is_checked(write_shards):
    """ShardFile(rows=, size_bytes=): another number than the file's is refused with both."""
    path = write_shards([16])[0]
    for wrong, told in (({"rows": 17}, "17 rows"), ({"size_bytes": 3}, "3 bytes")):
        source = FileSource(files=[ShardFile(uri=str(path), **wrong)])
        with pytest.raises(ChangedDataError, match=told) as caught:
            open_batch_stream(stream_config(stage_of(source)))
        assert caught.value.shard == str(path)


def test_a_memory_limit_that_is_too_small_names_the_setting(write_shards):
    """Refused at open with the whole sum and what would make it fit."""
    config = stream_config(
        stage_of(write_shards([64]), batch_size=64, buffer_rows=4096), memory_limit_bytes=20_000_000, block_rows=10**7
    )
    with pytest.raises(MemoryBoundError, match="memory_limit_bytes") as caught:
        open_batch_stream(config)
    error = caught.value
    assert isinstance(error, MemoryError)
    assert error.limit_bytes == 20_000_000 < error.needed_bytes == sum(error.terms.values())
    assert all(name in str(error) for name in error.terms)


def test_a_source_without_rows_is_refused(write_shards):
    """A shard without row groups alone: refused by name; beside others it adds nothing (see the order tests)."""
    paths = write_shards([0], name="empty")
    with pytest.raises(ConfigError, match="nothing-in-it"):
        open_batch_stream(stream_config(stage_of(FileSource(files=[str(paths[0])], name="nothing-in-it"))))


def test_an_encrypted_column_is_refused_and_nothing_aborts(parquet_testing, open_stream):
    """C9: the footer's encrypted column kills who asks for it; the user gets an error, and the clear column works."""
    path = parquet_testing / "data" / "encrypt_columns_plaintext_footer.parquet.encrypted"
    encrypted = stream_config(stage_of([path]), fields=[ProjectedField(name="float_field", dtype="f32")])
    with pytest.raises(CorruptDataError) as caught:
        open_batch_stream(encrypted)
    assert caught.value.shard == str(path)
    clear = stream_config(
        stage_of([path], batch_size=50), fields=[ProjectedField(name="int64_field", dtype="i64", length=2)]
    )
    batch = open_stream(clear).next()
    assert batch["int64_field"][:3].tolist() == [[0, 10**12], [2 * 10**12, 3 * 10**12], [4 * 10**12, 5 * 10**12]]


def test_a_fork_does_not_carry_the_stream_over(write_shards, open_stream):
    """The child is told to open its own, and neither its use nor its end touches the parent's stream."""
    config = stream_config(stage_of(write_shards([64])))
    reference = Reference(config)
    stream = open_stream(config)
    batch = reference.check(stream.next(), number=0)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            reference.check(batch, number=0)
            for use in (stream.next, stream.stats, lambda: stream.seek(0)):
                try:
                    use()
                except StreamClosedError as error:
                    code = 0 if "another process" in str(error) else 2
                else:
                    code = 3
                if code:
                    break
            stream.close()
        finally:
            sys.stderr.flush()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    reference.check_rest(stream, position=1)


def test_a_stream_opened_by_a_thread_that_ended_goes_on_in_another(write_shards):
    """C8: opened in one thread, read in a second, closed in a third."""
    config = stream_config(stage_of(write_shards([64])))
    reference = Reference(config)
    held: list[BatchStream] = []
    for step in (
        lambda: held.append(open_batch_stream(config)),
        lambda: reference.check(held[0].next(), number=0),
    ):
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
    reference.check_rest(held[0], position=1)
    held[0].close()


def test_a_shard_whose_name_is_no_text_is_streamed(write_shards, tmp_path, open_stream):
    """File names are bytes: one in Latin-1 is read like any other, by its listed name and in a glob."""
    (path,) = write_shards([8])
    odd = Path(path).with_name(os.fsdecode(b"\xe4.parquet"))
    Path(path).rename(odd)
    stream = open_stream(stream_config(stage_of([odd], batch_size=8)))
    assert [batch["id"].tolist() for batch in stream] == [list(range(8))]
    assert Checkpoint.from_json(stream.checkpoint().to_json()).sources[0].uris == (str(odd),)
