"""Records as bytes: lines of gzip text, frames behind lengths, and everything that can be wrong with either."""

import gzip
import io
from pathlib import Path

import msgpack
import pytest

import record_writer
from o41td.workers.record_feed import RecordFeed, UnreadableRecord, open_feed

BIG = 1 << 30


def lines_feed(data: bytes, *, max_record_bytes: int = 1 << 20) -> RecordFeed:
    """A feed of gzip lines."""
    return open_feed(io.BytesIO(data), "jsonl.gz", max_record_bytes=max_record_bytes)


def frames_feed(data: bytes, *, max_record_bytes: int = 1 << 20) -> RecordFeed:
    """A feed of frames."""
    return open_feed(io.BytesIO(data), "msgpack.zstf", max_record_bytes=max_record_bytes)


def all_of(feed: RecordFeed) -> list[bytes]:
    """Every record, taken by threes."""
    records = []
    while taken := feed.take(3, BIG):
        records += taken
    return records


def lines_of(text: bytes) -> list[bytes]:
    """The records of a text."""
    return [line.strip() for line in all_of(lines_feed(gzip.compress(text)))]


@pytest.mark.parametrize(
    "text",
    [
        b"a\nb\nc\n",
        b"a\nb\nc",
        b"a\r\nb\r\nc\r\n",
        b"\n\na\n \t\n\r\nb\n\nc\n\n\n",
        b"\xef\xbb\xbfa\nb\nc\n",
    ],
    ids=["plain", "no newline at the end", "CRLF", "empty lines", "byte order mark"],
)
def test_a_line_is_a_record_however_lines_end(text: bytes) -> None:
    """White space alone is no record, and neither line ends nor a byte order mark change what there is."""
    assert lines_of(text) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("text", [b"", b"\n", b"\r\n  \n"], ids=["empty", "newline", "white space"])
def test_a_text_of_nothing_has_no_records(text: bytes) -> None:
    """A gzip file of white space is a shard without records."""
    assert lines_of(text) == []


def test_an_empty_file_has_no_records() -> None:
    """A file of no bytes is a shard without records in either encoding."""
    assert all_of(lines_feed(b"")) == []
    assert all_of(frames_feed(b"")) == []


def test_gzip_members_are_one_text() -> None:
    """A line may begin in one member and end in the next, as concatenated files have it."""
    data = gzip.compress(b"a\nb") + gzip.compress(b"") + gzip.compress(b"b\nc\n")
    assert all_of(lines_feed(data)) == [b"a", b"bb", b"c"]


def test_lines_across_chunks_stay_whole() -> None:
    """A text of many chunks comes out line by line, long lines among short ones."""
    lines = [b"%d" % (i % 10) * (300_000 if i % 500 == 7 else i % 50 + 1) for i in range(3000)]
    assert all_of(lines_feed(gzip.compress(b"\n".join(lines), 1))) == lines


@pytest.mark.parametrize("skipped", [0, 1, 499, 500, 3000, 5000])
def test_passing_over_records_leads_to_the_next(skipped: int) -> None:
    """After skip(n) the feed stands at record n, or at the end where there are fewer."""
    records = [{"i": i, "text": "x" * (i % 40)} for i in range(3000)]
    lines = gzip.compress(b"".join(msgpack.packb(i).hex().encode() + b"\n" for i in range(3000)))
    frames = b"".join(record_writer.frame_of(msgpack.packb(record)) for record in records)
    for feed in (lines_feed(lines), frames_feed(frames)):
        assert feed.skip(skipped) == min(skipped, 3000)
        assert feed.position == min(skipped, 3000)
        assert len(feed.take(1, BIG)) == (skipped < 3000)
    if skipped < 3000:
        feed = frames_feed(frames)
        feed.skip(skipped)
        assert msgpack.unpackb(feed.take(1, BIG)[0]) == records[skipped]


def test_what_is_taken_at_once_is_bounded_by_bytes() -> None:
    """Frames are taken until they come to the bytes asked for, not one more."""
    feed = frames_feed(b"".join(record_writer.frame_of(bytes(100)) for _ in range(50)))
    assert len(feed.take(50, 250)) == 3
    assert feed.position == 3


def test_a_frame_without_a_content_size_is_read() -> None:
    """Writers that stream leave the size out of the frame's header."""
    data = record_writer.frame_of(b"abc", with_size=False) + record_writer.frame_of(b"d")
    assert all_of(frames_feed(data)) == [b"abc", b"d"]


def test_what_is_no_gzip_is_said_to_be_none() -> None:
    """A shard of another format is refused in words that say what it is not."""
    with pytest.raises(UnreadableRecord, match=r"no readable gzip: it does not begin as one. `gzip` makes"):
        all_of(lines_feed(b'{"text": "plain lines"}\n'))


def test_a_gzip_stream_that_is_cut_short_names_the_record() -> None:
    """What lies before the damage is given out, then the first record that cannot be had is named."""
    whole = gzip.compress(b"".join(b"%d\n" % i for i in range(200_000)), 1)
    feed = lines_feed(whole[:-2000])
    with pytest.raises(UnreadableRecord, match="ends early") as caught:
        all_of(feed)
    assert caught.value.row == feed.position > 0


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"this is no gzip at all", "gzip"),
        (gzip.compress(b"a\n" * 9)[:-8] + b"\0\0\0\0\x12\0\0\0", "CRC"),
        (gzip.compress(b"a\n")[:15], "ends early"),
    ],
    ids=["not gzip", "checksum", "cut in the header"],
)
def test_damaged_gzip_is_refused(data: bytes, why: str) -> None:
    """Whatever is wrong with the stream is told with record 0, the first that was not had."""
    with pytest.raises(UnreadableRecord, match=why) as caught:
        all_of(lines_feed(data))
    assert caught.value.row == 0


GOOD = record_writer.frame_of(msgpack.packb({"x": 1}))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (GOOD[:5], "5 bytes are left"),
        (GOOD[:-1], "ends early"),
        ((1 << 62).to_bytes(8, "big") + GOOD[8:], "length is damaged"),
        ((len(GOOD) - 9).to_bytes(8, "big") + GOOD[8:], "damaged"),
        ((3).to_bytes(8, "big") + b"abc", "no Zstandard frame|damaged"),
        ((2 * len(GOOD) - 16).to_bytes(8, "big") + GOOD[8:] * 2, "damaged"),
        ((0).to_bytes(8, "big"), "cut short"),
    ],
    ids=["half a length", "cut short", "huge length", "short length", "no frame", "two frames", "empty frame"],
)
def test_damaged_frames_are_refused(data: bytes, why: str) -> None:
    """A record is exactly one frame of the stated length; anything else names the record."""
    feed = frames_feed(GOOD + data)
    assert len(feed.take(1, BIG)) == 1
    with pytest.raises(UnreadableRecord, match=why) as caught:
        feed.take(1, BIG)
    assert caught.value.row == 1


def test_records_before_damage_come_first() -> None:
    """A request that reaches into the damage gives what lies before it, and the damage only the next time."""
    feed = frames_feed(GOOD * 3 + b"\xff" * 20)
    assert len(feed.take(10, BIG)) == 3
    for _ in range(2):
        with pytest.raises(UnreadableRecord):
            feed.take(10, BIG)


def test_a_record_that_is_too_large_is_refused_before_it_is_held() -> None:
    """A line of any length and a frame that claims any size stop at the limit and name the setting."""
    text = gzip.compress(b'{"a":1}\n' + b"x" * (4 << 20))
    feed = lines_feed(text, max_record_bytes=1 << 20)
    assert feed.take(1, BIG) == [b'{"a":1}']
    with pytest.raises(UnreadableRecord, match="max_row_group_bytes"):
        feed.take(1, BIG)
    for with_size in (True, False):
        frames = frames_feed(record_writer.frame_of(bytes(4 << 20), with_size=with_size), max_record_bytes=1 << 20)
        with pytest.raises(UnreadableRecord, match="max_row_group_bytes"):
            frames.take(1, BIG)


def test_a_closed_feed_leaves_no_file_open(tmp_path: Path) -> None:
    """Closing a feed closes the file that it was given."""
    path = record_writer.write_lines(tmp_path / "a.jsonl.gz", b"a\n")
    for encoding in ("jsonl.gz", "msgpack.zstf"):
        with open(path, "rb") as file:
            open_feed(file, encoding, max_record_bytes=100).close()
            assert file.closed
