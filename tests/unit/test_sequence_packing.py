"""Documents into sequences, and the columns that come of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from o41td.writing.sequence_packing import BestFit, Concatenate, Piece, fitted

LENGTHS = st.lists(st.integers(1, 40), max_size=60)


def document(row, length):
    """A document whose tokens say where they are from."""
    return Piece(0, row, 0, True, np.arange(length, dtype=np.int32) + row * 1000)


def packed(packer, lengths):
    """All sequences of documents of some lengths."""
    sequences = [pieces for row, length in enumerate(lengths) for pieces in packer.add(document(row, length))]
    return [*sequences, *packer.finish()]


def spans(sequences):
    """Each piece as (row, first token, one past the last)."""
    return [[(p.row, p.start, p.start + len(p.tokens)) for p in pieces] for pieces in sequences]


def test_concatenate_cuts_where_it_falls():
    """Documents of 3, 6 and 2 tokens in sequences of 4 make 4, 4 and 3 tokens, cut as worked out by hand."""
    assert spans(packed(Concatenate(4), [3, 6, 2])) == [[(0, 0, 3), (1, 0, 1)], [(1, 1, 5)], [(1, 5, 6), (2, 0, 2)]]


def test_best_fit_takes_the_tightest_room():
    """Of sizes 6, 5, 4, 3, 2 in rooms of 10: 6+4 and 5+3+2, as best fit decreasing has it; longer ones are cut."""
    assert spans(packed(BestFit(10), [6, 5, 4, 3, 2])) == [[(0, 0, 6), (2, 0, 4)], [(1, 0, 5), (3, 0, 3), (4, 0, 2)]]
    assert spans(packed(BestFit(10), [23])) == [[(0, 0, 10)], [(0, 10, 20)], [(0, 20, 23)]]


@given(LENGTHS, st.integers(1, 16))
def test_concatenate_loses_nothing(lengths, length):
    """Laid end to end the sequences are the documents laid end to end, all full but the last."""
    sequences = packed(Concatenate(length), lengths)
    tokens = [token for pieces in sequences for piece in pieces for token in piece.tokens.tolist()]
    assert tokens == [token for row, size in enumerate(lengths) for token in document(row, size).tokens.tolist()]
    assert all(sum(len(piece.tokens) for piece in pieces) == length for pieces in sequences[:-1])


@given(LENGTHS, st.integers(1, 16), st.integers(1, 4))
def test_best_fit_keeps_documents_whole(lengths, length, window):
    """Every token comes once, none beyond the length, and only documents longer than a sequence are cut."""
    sequences = packed(BestFit(length, window=window), lengths)
    pieces = [piece for pieces in sequences for piece in pieces]
    tokens = sorted(token for piece in pieces for token in piece.tokens.tolist())
    assert tokens == sorted(t for row, size in enumerate(lengths) for t in document(row, size).tokens.tolist())
    assert all(0 < sum(len(piece.tokens) for piece in pieces) <= length for pieces in sequences)
    assert all(piece.whole == (lengths[piece.row] <= length) for piece in pieces)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=80))
def test_bins_are_as_few_as_best_fit_promises(sizes):
    """No bin could take a whole other bin, and bins number at most 11/9 of the least that could do, and one."""
    bins = [sum(sizes[place] for place in places) for places in fitted(sizes, 30)]
    assert sorted(place for places in fitted(sizes, 30) for place in places) == list(range(len(sizes)))
    least = -(-sum(sizes) // 30)
    bound = max(least, sum(size > 15 for size in sizes))
    assert len(bins) <= 2 * bound
    assert sum(one <= 15 for one in bins) <= 1


@pytest.mark.parametrize("make", [Concatenate, BestFit])
def test_masks_follow_their_tokens(make):
    """Whatever way documents are cut, each token keeps its own mask."""
    tokens = np.arange(50, dtype=np.int32)
    packer = make(8)
    sequences = [*packer.add(Piece(0, 0, 0, True, tokens, tokens % 3 == 0)), *packer.finish()]
    for piece in (piece for pieces in sequences for piece in pieces):
        assert piece.mask.tolist() == (piece.tokens % 3 == 0).tolist()
