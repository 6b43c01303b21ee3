"""How running loaders are found."""

import contextlib
import json
import os
import socket
import threading
from pathlib import Path

import pytest

from o41td import runtime_folder
from o41td.errors import ConnectError
from o41td.joining import join_loader
from o41td.runtime import list_loaders
from o41td.runtime_folder import (
    NameTaken,
    claimed_name,
    listed_loaders,
    process_start_time,
    publish_loader,
    withdraw_loader,
)
from o41td.workers.messages import PROTOCOL


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime folder of the test's own, where it would be made."""
    tmp_path.chmod(0o700)  # itself, for a socket's path must be short
    monkeypatch.setattr(runtime_folder, "runtime_folder", lambda *, create: tmp_path)
    return tmp_path


def test_a_loader_is_listed_until_it_withdraws(folder: Path) -> None:
    """Its entry names it, this process and when this process began."""
    published = publish_loader("one", protocol="a")
    assert published is not None
    entry, listener = published
    assert [(found.name, found.pid) for found in listed_loaders()] == [("one", os.getpid())]
    assert entry.start_time == process_start_time(os.getpid())
    listener.close()
    withdraw_loader(entry)
    withdraw_loader(entry)
    assert listed_loaders() == []
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("other", ["0", PROTOCOL[::-1]])
def test_a_loader_with_other_messages_is_told_as_such_and_not_called(folder: Path, other: str) -> None:
    """It is listed with what to do, and who would join it is refused."""
    _entry, listener = publish_loader("one", protocol=other, is_served=True)
    [shown] = list_loaders()
    assert (shown["name"], shown["state"], shown["verdict"]) == (
        "one", "other version", "it runs another version of o41td"
    )  # fmt: skip
    with pytest.raises(ConnectError, match=r"'one' .* another version"):
        join_loader("one", 0)
    with pytest.raises(BlockingIOError):
        listener.accept()
    listener.close()


@pytest.mark.parametrize(
    "content",
    [
        json.dumps({"name": "dead", "pid": 2**22 + 1, "start_time": 1}),
        json.dumps({"name": "another process with this pid", "pid": os.getpid(), "start_time": 1}),
        json.dumps({"name": "no pid"}),
        json.dumps({"name": "no number", "pid": float("inf"), "start_time": 1}),
        "torn {",
        "[" * 100_000,
        "",
    ],
    ids=["dead", "pid used again", "no pid", "no number", "torn", "deep", "empty"],
)
def test_stale_entries_are_removed_not_shown(folder: Path, content: str) -> None:
    """A pid that is gone, or was given to another process since, and anything unreadable, is no loader."""
    (folder / "1-a.json").write_text(content)
    (folder / "1-a.sock").touch()
    assert listed_loaders() == []
    assert list(folder.iterdir()) == []


def test_half_an_entry_of_a_dead_loader_is_removed(folder: Path) -> None:
    """Killed between its socket and its file, a loader leaves either; those of one that lives are its own affair."""
    namespace = f"{os.stat('/proc/self/ns/pid').st_ino:x}"
    dead, alive = f"{2**22 + 1}-{namespace}", f"{os.getpid()}-{namespace}"
    for stem in (dead, alive):
        (folder / f"{stem}-a.sock").touch()
        (folder / f"{stem}-b.sock").touch()
        (folder / f"{stem}-b.json.partial").touch()
    assert listed_loaders() == []
    assert sorted(path.name for path in folder.iterdir()) == [
        f"{alive}-a.sock", f"{alive}-b.json.partial", f"{alive}-b.sock"
    ]  # fmt: skip


def test_containers_that_share_the_folder_leave_each_others_entries_alone(folder: Path) -> None:
    """A pid of another namespace says nothing here; an entry of one goes when nobody listens at it any more."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(folder / "7-1-a.sock"))
    listener.listen(1)
    (folder / "7-1-a.json").write_text(json.dumps({"name": "theirs", "pid": 7, "start_time": 1}))
    for _ in range(3):  # more calls than it answers
        assert listed_loaders() == []
        assert sorted(path.name for path in folder.iterdir()) == ["7-1-a.json", "7-1-a.sock"]
    listener.close()
    assert listed_loaders() == []
    assert list(folder.iterdir()) == []


def test_the_folder_is_ours_alone() -> None:
    """The real folder, where there is one, has mode 0700 and this user as its owner."""
    path = runtime_folder.runtime_folder(create=True)
    if path is not None:
        assert path.stat().st_mode & 0o777 == 0o700
        assert path.stat().st_uid == os.getuid()


def test_a_folder_that_others_can_enter_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else may have made it before us: sockets are not put there."""
    monkeypatch.setattr(runtime_folder, "Path", lambda text: tmp_path / text.strip("/"))
    for parent in (tmp_path / "tmp", tmp_path / "run" / "user" / str(os.getuid())):
        parent.mkdir(parents=True)
    assert runtime_folder.runtime_folder(create=True) == tmp_path / "run" / "user" / str(os.getuid()) / "o41td"
    (tmp_path / "run" / "user" / str(os.getuid()) / "o41td").chmod(0o755)
    assert runtime_folder.runtime_folder(create=True) == tmp_path / "tmp" / f"o41td-{os.getuid()}"
    (tmp_path / "tmp" / f"o41td-{os.getuid()}").chmod(0o777)
    assert runtime_folder.runtime_folder(create=True) is None


@pytest.mark.parametrize("spoil", ["a link", "a file", "another's", "a parent open to all"])
def test_what_only_looks_like_our_folder_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    """A link to a folder, a file, another user's folder, and one that others could rename away are each refused."""
    parent = tmp_path / "tmp"
    parent.mkdir(mode=0o755)
    monkeypatch.setattr(runtime_folder, "Path", lambda text: tmp_path / text.strip("/"))
    folder = parent / f"o41td-{os.getuid()}"
    assert runtime_folder.runtime_folder(create=True) == folder
    if spoil == "a link":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    elif spoil == "a file":
        folder.rmdir()
        folder.touch(mode=0o600)
    elif spoil == "another's":
        if os.getuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(folder, 65534, 65534)
    else:
        parent.chmod(0o777)
    assert runtime_folder.runtime_folder(create=True) is None
    assert publish_loader("one", protocol="a") is None
    assert listed_loaders() == []
    if spoil == "a parent open to all":
        parent.chmod(0o1777)  # sticky, as /tmp is: only its owner can rename what is in it
        assert runtime_folder.runtime_folder(create=True) == folder


def test_no_start_time_of_the_dead() -> None:
    """A process that is not there has none."""
    assert process_start_time(2**22 + 1) is None


def test_a_name_is_one_holders_until_it_lets_go(folder: Path) -> None:
    """A second claim is told the holder's pid; the name is free behind the block, and nothing is left."""
    for _ in range(2):
        with claimed_name("pretrain"), claimed_name("another"):
            with pytest.raises(NameTaken, match=f"^{os.getpid()}$"), claimed_name("pretrain"):
                pass
            with pytest.raises(NameTaken), claimed_name("pretrain"):
                pass
    assert list(folder.iterdir()) == []


def test_of_many_that_claim_a_name_at_once_one_has_it(folder: Path) -> None:
    """Eight threads claim and let go a name over and over: it never has two holders."""
    holders, most = 0, 0
    gate, counting = threading.Barrier(8), threading.Lock()

    def claim() -> None:
        nonlocal holders, most
        gate.wait()
        for _ in range(100):
            with contextlib.suppress(NameTaken), claimed_name("race"):
                with counting:
                    holders += 1
                    most = max(most, holders)
                with counting:
                    holders -= 1

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert list(folder.iterdir()) == []
