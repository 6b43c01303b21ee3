"""What can be typed: the commands, their arguments and their help."""

from __future__ import annotations

import functools
import io
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from o41td.cli.failure import UsageProblem, exit_code_of

__all__ = ["app", "run_app"]

app = typer.Typer(
    name="o41td",
    help="Deterministic, instantly resumable training batches out of Parquet.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigPath = Annotated[Path, typer.Argument(help="A stream's config: .toml, .json or .yaml.")]
Target = Annotated[Path, typer.Argument(help="A config, or a checkpoint.")]
IndexTargets = Annotated[list[str], typer.Argument(help="A config or a checkpoint; or local files, folders, globs.")]
Rank = Annotated[int, typer.Option("--rank", help="This training process's number, from 0.")]
WorldSize = Annotated[int, typer.Option("--world-size", help="How many training processes share the order.")]
Storage = Annotated[
    Path | None, typer.Option("--storage", help="Settings to reach remote storage: a .toml or .json file.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
Debug = Annotated[bool, typer.Option("--debug", help="On an error, print the traceback too.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"o41td {version('o41td')}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    _debug: Debug = False,
) -> None:
    """Deterministic, instantly resumable training batches out of Parquet."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def run(
    config: ConfigPath,
    rank: Rank = 0,
    world_size: WorldSize = 1,
    batches: Annotated[
        int | None, typer.Option("--batches", min=1, help="Stop after this many batches (of this rank).")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", help="Save where the stream stands here, at the end, at Ctrl-C or SIGTERM."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on from this checkpoint, which must fit CONFIG.")
    ] = None,
    storage: Storage = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Stream a config's stages, one after the other, and say how fast it went.

    A finite stage is streamed to its end; an infinite one until --batches or Ctrl-C.
    """
    from o41td.cli.run import run_config

    run_config(
        config,
        rank=rank,
        world_size=world_size,
        num_batches=batches,
        checkpoint_path=checkpoint,
        resume_path=resume,
        storage_path=storage,
        as_json=as_json,
    )


@app.command()
def serve(
    config: ConfigPath,
    name: Annotated[str, typer.Option("--name", help="What `connect(name, rank=…)` finds it by.")],
    ranks: Annotated[
        str, typer.Option("--ranks", help="How many ranks this host has, if it has all; else which, such as 8-15.")
    ] = "1",
    world_size: Annotated[
        int | None, typer.Option("--world-size", help="How many ranks there are on all hosts; with a range of --ranks.")
    ] = None,
    storage: Storage = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Run one loader for all ranks of this host, until Ctrl-C or SIGTERM: what several need is decoded once.

    It says when it is ready. Trainers `connect`, come and go.
    """
    from o41td.cli.serve import serve_config

    serve_config(config, name=name, ranks=ranks, world_size=world_size, storage_path=storage, as_json=as_json)


@app.command()
def demo(
    config: Annotated[Path | None, typer.Argument(help="Your own config; a sample data set if absent.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Where the sample is kept; ~/.cache/o41td/demo-1 if absent.")
    ] = None,
    batches: Annotated[
        int | None,
        typer.Option(
            "--batches", min=2, help="At most this many batches of each stage; 500 of your own, all of the sample."
        ),
    ] = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Show that a stream stopped in the middle and resumed is the same as one that never stopped."""
    from o41td.cli.demo import run_demo

    run_demo(config, folder=folder, stage_batches=batches, as_json=as_json)


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="Only the loader of this name; all if absent.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second until Ctrl-C.")] = False,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print Prometheus' text format, for a scrape.")
    ] = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Show the loaders that you have running on this machine, how they do, and what holds them back."""
    from o41td.cli.status import show_status

    show_status(name, watch=watch, as_json=as_json, as_prometheus=prometheus)


@app.command()
def plan(
    config: ConfigPath,
    rank: Rank = 0,
    world_size: WorldSize = 1,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the curriculum here: each source's share over the steps.")
    ] = None,
    diff: Annotated[Path | None, typer.Option("--diff", help="Another config: print in what its plan differs.")] = None,
    storage: Storage = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Say what a config comes to, without streaming: rows, batches, bytes and memory. Only footers are read."""
    from o41td.cli.plan import show_plan

    show_plan(
        config,
        rank=rank,
        world_size=world_size,
        plot_path=plot,
        other_path=diff,
        storage_path=storage,
        as_json=as_json,
    )


@app.command()
def check(
    config: ConfigPath,
    rank: Rank = 0,
    world_size: WorldSize = 1,
    storage: Storage = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> int:
    """Probe this host, the shards and the config: ok, warn or fail (exit 1), and what to do. Reads a small sample."""
    from o41td.cli.check import show_check

    return 0 if show_check(config, rank=rank, world_size=world_size, storage_path=storage, as_json=as_json) else 1


@app.command()
def bench(
    config: ConfigPath,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=3600, help="How long each number of workers is measured.")
    ] = 10.0,
    workers: Annotated[
        bool, typer.Option("--workers", help="Measure with one worker, and with one more than threads, too, in turns.")
    ] = False,
    stage: Annotated[
        str | None, typer.Option("--stage", help="The stage to begin with, by name; else the first.")
    ] = None,
    rank: Rank = 0,
    world_size: WorldSize = 1,
    storage: Storage = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure what a config reaches here, where the time goes, and what to change. Batches are taken, and dropped."""
    from o41td.cli.bench import show_bench

    show_bench(
        config,
        rank=rank,
        world_size=world_size,
        seconds=seconds,
        stage=stage,
        compare_workers=workers,
        storage_path=storage,
        as_json=as_json,
    )


@app.command()
def index(targets: IndexTargets, storage: Storage = None, as_json: AsJson = False, _debug: Debug = False) -> None:
    """Read every footer into the index cache, so that streams open at once, and show what is known of the shards.

    Of local files, folders or globs without a config: what shards they are, and which columns they have.
    """
    if len(targets) == 1 and targets[0].lower().endswith((".toml", ".json", ".yaml", ".yml")):
        from o41td.cli.index import show_index

        show_index(Path(targets[0]), storage_path=storage, as_json=as_json)
        return
    if storage is not None:
        raise UsageProblem("--storage goes with a config or a checkpoint; bare files are local ones")
    from o41td.cli.bare_index import show_files

    if not show_files(targets, as_json=as_json):
        raise typer.Exit(1)


@app.command()
def write(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders, globs: Parquet, Arrow, CSV, JSON lines, msgpack.zstf, MDS folders, WebDataset tars."
        ),
    ],
    to: Annotated[str, typer.Option("--to", help="The manifest to publish (…/NAME.json), or its folder.")],
    split: Annotated[
        list[str] | None,
        typer.Option("--split", help="NAME=SHARE, such as train=0.99; may be repeated. All rows are train if absent."),
    ] = None,
    split_by: Annotated[
        str | None, typer.Option("--split-by", help="Rows with the same value of this column go to the same split.")
    ] = None,
    stage: Annotated[str | None, typer.Option("--stage", help="The curriculum stage of all shards.")] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Shuffle all rows once, on disk, in bounded memory.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the splits and the shuffle.")] = 0,
    layout: Annotated[
        str, typer.Option("--layout", help="balanced, fast, or lists (for tools that want to see lists).")
    ] = "balanced",
    fast: Annotated[bool, typer.Option("--fast", help="The same as --layout fast.")] = False,
    encoding: Annotated[
        str, typer.Option("--encoding", help="The shards' encoding: parquet, jsonl.gz or msgpack.zstf.")
    ] = "parquet",
    input_format: Annotated[
        str | None, typer.Option("--format", help="What the inputs are, where their suffixes do not tell.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option("--column", help="Keep this column; may be repeated. All if absent.")
    ] = None,
    shard_size: Annotated[
        str, typer.Option("--shard-size", help="What a shard's rows take when decoded, about.")
    ] = "256MiB",
    row_group_size: Annotated[
        str | None, typer.Option("--row-group-size", help="What a row group's rows take when decoded, about.")
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Shards that are written at once.")] = 2,
    storage: Storage = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Write rows of other formats, or of Parquet laid out badly, as shards that stream fast, and a manifest.

    Run again after a kill it goes on: shards that are done are passed over. Every shard is read back and compared.
    """
    from o41td.cli.write import write_data, write_job_of

    job = write_job_of(
        inputs,
        to,
        splits=split,
        layout=layout,
        fast=fast,
        shard_size=shard_size,
        row_group_size=row_group_size,
        split_by=split_by,
        stage=stage,
        shuffle=shuffle,
        seed=seed,
        encoding=encoding,
        input_format=input_format,
        columns=column,
        threads=threads,
    )
    write_data(job, storage_path=storage, as_json=as_json)


@app.command()
def pack(
    inputs: Annotated[
        list[str], typer.Argument(help="Files, folders, globs of documents, one a row, as `write` takes.")
    ],
    to: Annotated[str, typer.Option("--to", help="The manifest to publish (…/NAME.json), or its folder.")],
    length: Annotated[int, typer.Option("--length", min=1, help="Tokens of a sequence.")],
    method: Annotated[
        str, typer.Option("--method", help="best-fit keeps documents whole; concatenate cuts them and wastes nothing.")
    ] = "best-fit",
    column: Annotated[str, typer.Option("--column", help="The column of token lists.")] = "tokens",
    mask_column: Annotated[
        str | None, typer.Option("--mask-column", help="A column of as many bools: which tokens count for the loss.")
    ] = None,
    separator: Annotated[
        int | None, typer.Option("--separator", min=0, help="A token to put behind every document.")
    ] = None,
    pad: Annotated[int, typer.Option("--pad", min=0, help="The token of padding.")] = 0,
    drop_last: Annotated[bool, typer.Option("--drop-last", help="Leave out a last sequence that is not full.")] = False,
    split: Annotated[str, typer.Option("--split", help="The split of all shards.")] = "train",
    stage: Annotated[str | None, typer.Option("--stage", help="The curriculum stage of all shards.")] = None,
    layout: Annotated[str, typer.Option("--layout", help="balanced, fast or lists.")] = "balanced",
    fast: Annotated[bool, typer.Option("--fast", help="The same as --layout fast.")] = False,
    input_format: Annotated[
        str | None, typer.Option("--format", help="What the inputs are, where their suffixes do not tell.")
    ] = None,
    shard_size: Annotated[
        str, typer.Option("--shard-size", help="What a shard's rows take when decoded, about.")
    ] = "256MiB",
    threads: Annotated[int, typer.Option("--threads", min=1, help="Shards that are written at once.")] = 2,
    storage: Storage = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Pack documents into sequences of one length, with loss masks, position ids, lengths and each piece's source.

    Run again after a kill it goes on. Says how many tokens came in, and how much of what went out is padding.
    """
    from o41td.cli.pack import pack_documents, pack_job_of

    job = pack_job_of(
        inputs,
        to,
        layout=layout,
        fast=fast,
        shard_size=shard_size,
        length=length,
        method=method,
        column=column,
        mask_column=mask_column,
        separator=separator,
        pad=pad,
        drop_last=drop_last,
        split=split,
        stage=stage,
        input_format=input_format,
        threads=threads,
    )
    pack_documents(job, storage_path=storage, as_json=as_json)


@app.command()
def inspect(
    target: Annotated[str, typer.Argument(help="A shard, a file of another format, a manifest, or a config.")],
    rows: Annotated[int, typer.Option("--rows", min=0, help="How many of the first rows to show.")] = 3,
    input_format: Annotated[
        str | None, typer.Option("--format", help="What the file is, where its suffix does not tell.")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw how long lists are here: padding and cuts.")] = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Show what a file holds and how it is laid out: columns, row groups, codecs, lengths of lists, first rows.

    Of a config, the first rows of a file are shown as a stream would deliver them, and padding and cuts are told.
    """
    from o41td.cli.inspect import show_target

    show_target(target, rows=rows, input_format=input_format, plot_path=plot, as_json=as_json)


@app.command()
def convert(
    document: Annotated[Path, typer.Argument(help="A config or a manifest of o41-training-data.", metavar="FILE")],
    to: Annotated[
        Path | None, typer.Option("--to", help="Write the config here, .json or .yaml; it is printed if absent.")
    ] = None,
    storage_to: Annotated[
        Path | None, typer.Option("--storage-to", help="Write storage settings, credentials too, here: FILE.json.")
    ] = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Turn a config of o41-training-data into one of o41td; say of a manifest that it is read as it is.

    Nothing is overwritten.
    """
    from o41td.cli.convert import convert_file

    convert_file(document, to=to, storage_to=storage_to, as_json=as_json)


@app.command()
def cache(
    cache_dir: Annotated[Path, typer.Argument(help="A config's cache_dir.", metavar="DIR")],
    clear: Annotated[bool, typer.Option("--clear", help="Remove every file of the cache, and nothing else.")] = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Say what a block cache holds: files, bytes on disk, when they were used."""
    from o41td.cli.cache import show_cache

    show_cache(cache_dir, clear=clear, as_json=as_json)


@app.command()
def trace(
    target: Target,
    batch: Annotated[int | None, typer.Option("--batch", min=0, help="What was in this global batch?")] = None,
    step: Annotated[int | None, typer.Option("--step", min=0, help="What was in this step of --rank, from 0?")] = None,
    rank: Rank = 0,
    world_size: WorldSize = 1,
    shard: Annotated[
        str | None,
        typer.Option("--shard", help="In which batches does --row of this shard come? The end of a path does."),
    ] = None,
    row: Annotated[int | None, typer.Option("--row", min=0, help="A row of --shard, from 0.")] = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", min=1, help="Of --row: in so many epochs. A checkpoint's batches so far if absent."),
    ] = None,
    show: Annotated[
        list[str] | None, typer.Option("--show", help="Print this column's (or field's) values too; may be repeated.")
    ] = None,
    storage: Storage = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Say which rows a batch holds, or in which batches a row comes.

    Nothing but footers is read, and with --show the row groups in question.
    """
    from o41td.cli.trace import TraceQuestion, show_trace

    question = TraceQuestion(
        batch=batch, step=step, rank=rank, shard=shard, row=row, epochs=epochs, columns=tuple(show or ())
    )
    show_trace(target, question, world_size=world_size, storage_path=storage, as_json=as_json)


@app.command()
def verify(
    first: Target,
    second: Target,
    world_size: WorldSize = 1,
    storage: Storage = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> int:
    """Say whether two configs or checkpoints are the same stream; if not, where they part and why (exit 1)."""
    from o41td.cli.verify import show_comparison

    return 0 if show_comparison(first, second, world_size=world_size, storage_path=storage, as_json=as_json) else 1


_command = functools.cache(lambda: typer.main.get_command(app))  # 50 ms, once in a process that runs many


def run_app(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and leave the process with its exit code.

    Args:
        arguments: what was typed after `o41td`; None takes `sys.argv`.
    """
    typed = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):  # a terminal of few letters, or a file name that is no text, ends nothing
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(
        exit_code_of(lambda: _command().main(typed, prog_name="o41td", standalone_mode=False), debug="--debug" in typed)
    )
