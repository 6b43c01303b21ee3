"""Pictures that the command line draws: whole, or not there."""

from __future__ import annotations

import pytest

from o41td.cli.plot import save_figure
from o41td.errors import StorageError


def test_a_picture_is_whole_or_not_there(tmp_path):
    """A picture takes the place of the one before; where it cannot, that is an error and nothing is left behind."""
    figure = pytest.importorskip("matplotlib.figure").Figure()
    picture = tmp_path / "a.png"
    picture.write_text("the one before")
    save_figure(figure, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    (tmp_path / "b.svg").mkdir()
    with pytest.raises(StorageError, match=rf"the picture cannot be written: Is a directory \({tmp_path}/b.svg\)"):
        save_figure(figure, tmp_path / "b.svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "b.svg"]
