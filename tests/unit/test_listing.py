"""Which files a source names."""

import os
from pathlib import Path

import pytest

from o41td.errors import ConfigError, MissingShardError
from o41td.listing import is_local, list_files, local_path_of


def touched(folder: Path, *names: str) -> None:
    """Makes files of one byte."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def names_of(folder: Path, entries: list[str]) -> list[str]:
    """What the entries name, relative to the folder."""
    return [str(Path(path).relative_to(folder)) for path in list_files(entries, source="s")]


def test_a_glob_lists_its_matches_sorted(tmp_path: Path) -> None:
    """Matches come in the order of their names, whatever the order on disk."""
    touched(tmp_path, "b.parquet", "a.parquet", "c.txt")
    assert names_of(tmp_path, [f"{tmp_path}/*.parquet"]) == ["a.parquet", "b.parquet"]


def test_entries_keep_their_order(tmp_path: Path) -> None:
    """The listed order is the line's order: only the matches of one entry are sorted."""
    touched(tmp_path, "z/1.parquet", "a/1.parquet")
    assert names_of(tmp_path, [f"{tmp_path}/z/*.parquet", f"{tmp_path}/a/1.parquet"]) == ["z/1.parquet", "a/1.parquet"]


def test_a_folder_stands_for_the_shards_below_it(tmp_path: Path) -> None:
    """Markers, hidden names, other suffixes and sub-folders named like shards are left out."""
    touched(
        tmp_path, "_SUCCESS", "_metadata", ".x.crc", "x.parquet.tmp", "X.PARQUET", "sub/y.parquet", "_tmp/z.parquet"
    )
    (tmp_path / "folder.parquet").mkdir()
    assert names_of(tmp_path, [str(tmp_path)]) == ["X.PARQUET", "sub/y.parquet"]


def test_a_double_star_crosses_folders(tmp_path: Path) -> None:
    """`**` matches any depth, hidden folders left out."""
    touched(tmp_path, "a/b/1.parquet", "2.parquet", ".hidden/3.parquet")
    assert names_of(tmp_path, [f"{tmp_path}/**/*.parquet"]) == ["2.parquet", "a/b/1.parquet"]


def test_a_glob_may_name_a_hidden_folder_outright(tmp_path: Path) -> None:
    """Only what the wildcard found is judged, not the folder that the user wrote."""
    touched(tmp_path, ".cache/_data/1.parquet")
    assert names_of(tmp_path, [f"{tmp_path}/.cache/_data/*.parquet"]) == [".cache/_data/1.parquet"]


@pytest.mark.parametrize(
    "name", ["a%2312.parquet", "a b.parquet", "a#b.parquet", "a[1].parquet", "é漢.parquet", "a?.parquet"]
)
def test_odd_names_mean_themselves(tmp_path: Path, name: str) -> None:
    """A path that exists is taken as it stands."""
    touched(tmp_path, name, "a1.parquet")
    assert names_of(tmp_path, [str(tmp_path / name)]) == [name]


def test_file_uris_are_percent_decoded(tmp_path: Path) -> None:
    """`file://` is a URI, so %20 is a space there; a plain path keeps its %20."""
    touched(tmp_path, "a b.parquet", "a%20b.parquet")
    assert names_of(tmp_path, [f"file://{tmp_path}/a%20b.parquet"]) == ["a b.parquet"]
    assert names_of(tmp_path, [f"{tmp_path}/a%20b.parquet"]) == ["a%20b.parquet"]
    assert local_path_of("file:///x/a%2520b") == "/x/a%20b"


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    """A named file that is missing, a glob without matches and a dangling link are three clear errors."""
    with pytest.raises(MissingShardError, match="no such file") as missing:
        list_files([str(tmp_path / "none.parquet")], source="web")
    assert missing.value.source == "web"
    assert missing.value.shard == str(tmp_path / "none.parquet")
    with pytest.raises(ConfigError, match=r"matches no file.*Check the path"):
        list_files([f"{tmp_path}/*.parquet"], source="web")
    (tmp_path / "dangling.parquet").symlink_to(tmp_path / "gone")
    with pytest.raises(MissingShardError, match="link"):
        list_files([f"{tmp_path}/*.parquet"], source="web")


def test_a_file_listed_twice_is_refused(tmp_path: Path) -> None:
    """Its rows would come twice an epoch, which is never what a list with two globs meant."""
    touched(tmp_path, "a.parquet")
    with pytest.raises(ConfigError, match="more than once"):
        list_files([f"{tmp_path}/*.parquet", f"{tmp_path}/a.parquet"], source="s")


@pytest.mark.parametrize(("uri", "expected"), [("/a/b", True), ("a", True), ("file:///a", True), ("s3://b/k", False)])
def test_local_uris(uri: str, expected: bool) -> None:
    """Only paths and file URIs are of this machine."""
    assert is_local(uri) is expected


def test_names_that_are_no_text_are_listed(tmp_path: Path) -> None:
    """File names are bytes; one that is not UTF-8 is a file like any other."""
    name = os.fsdecode(b"\xe4.parquet")
    touched(tmp_path, name)
    assert names_of(tmp_path, [f"{tmp_path}/*.parquet"]) == [name]


@pytest.mark.parametrize(
    ("mark", "table"),
    [
        ("_delta_log/00000000000000000000.json", "Delta"),
        ("web/metadata/v2.metadata.json", "Iceberg"),
        (".hoodie/hoodie.properties", "Hudi"),
    ],
)
def test_a_folder_of_a_table_with_versions_is_refused(tmp_path: Path, mark: str, table: str) -> None:
    """Files that the table has given up lie there too; a list or glob of files is taken as it is meant."""
    touched(tmp_path, "part-0.parquet", mark)
    with pytest.raises(ConfigError, match=f"a table of {table}"):
        list_files([str(tmp_path)], source="s")
    assert names_of(tmp_path, [f"{tmp_path}/*.parquet"]) == ["part-0.parquet"]


def test_a_folder_of_several_splits_is_refused(tmp_path):
    """The splits are told, and a split's own folder and a glob are taken; so is a set of one split."""
    written = tmp_path / "sets" / "one"
    for split in ("train", "validation"):
        (written / "_o41td" / "shards" / split).mkdir(parents=True)
        (written / "_o41td" / "shards" / split / "0.json").write_text("{}")
        (written / split).mkdir()
        (written / split / "0-ab.parquet").write_bytes(b"")
    for folder in (written, tmp_path):
        with pytest.raises(ConfigError, match=r"sets/one holds the splits train, validation.*split='train'"):
            list_files([str(folder)], source="web")
    assert list_files([str(written / "train")], source="web") == [str(written / "train" / "0-ab.parquet")]
    assert len(list_files([f"{written}/*/*.parquet"], source="web")) == 2
    (written / "_o41td" / "shards" / "validation" / "0.json").unlink()
    (written / "validation" / "0-ab.parquet").unlink()
    assert list_files([str(written)], source="web") == [str(written / "train" / "0-ab.parquet")]


def test_links_to_folders_are_followed_and_no_file_is_named_twice(tmp_path: Path) -> None:
    """A linked folder's shards are below the folder too; one linked twice, or from within, counts once; loops end."""
    touched(tmp_path, "far/z.parquet", "set/a/x.parquet", "set/b/y.parquet")
    for link, target in (
        ("set/away", "far"),
        ("set/latest", "set/b"),
        ("set/more", "far"),
        ("set/a/up", "set"),
        ("far/back", "set"),
    ):
        (tmp_path / link).symlink_to(tmp_path / target)
    (tmp_path / "set" / "loop").symlink_to(tmp_path / "set" / "loop")
    assert names_of(tmp_path, [str(tmp_path / "set")]) == ["set/a/x.parquet", "set/away/z.parquet", "set/b/y.parquet"]


@pytest.mark.parametrize("entry", ["~/a.parquet", "~/*.parquet", "$DATA/a.parquet", "~someone/data/*.parquet"])
def test_what_a_shell_would_have_replaced_is_told(tmp_path: Path, entry: str) -> None:
    """A home or a variable in a path means itself, and whoever meant something else learns that."""
    with pytest.raises((ConfigError, MissingShardError), match="`~` and `\\$NAME` mean themselves here"):
        list_files([f"{tmp_path}/{entry}"], source="s")


def test_a_glob_that_matches_only_folders_says_so(tmp_path: Path) -> None:
    """Folders named like shards, as Spark writes them, are not taken for shards, nor for nothing."""
    touched(tmp_path, "x.parquet/part-0.parquet", "y.parquet/part-0.parquet")
    with pytest.raises(ConfigError, match=rf"matches only folders, such as {tmp_path}/x.parquet.*Name the folder"):
        list_files([f"{tmp_path}/*.parquet"], source="s")
    assert names_of(tmp_path, [f"{tmp_path}/x.parquet"]) == ["x.parquet/part-0.parquet"]
