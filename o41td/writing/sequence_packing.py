"""Documents into sequences of one length: concatenated and split, or fitted whole. Pure; the same in, the same out.

    concatenate   one long line of tokens, cut every `length`; nothing is wasted, documents are cut wherever it falls
    best fit      documents stay whole where they can: of a window of them each goes, the longest first, where the least
                  room is left over; a document longer than a sequence is cut into whole sequences and a rest

Best fit decreasing needs little more room than there must be (Johnson, "Near-optimal bin packing algorithms", 1973),
and for language models it trains better than cutting documents (Ding et al., "Fewer truncations improve language
modeling", 2024).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BestFit", "Concatenate", "Piece", "SequencePacker"]

_WINDOW_SEQUENCES = 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [start, start + len(tokens)) of one document.

    Attributes:
        file: The document's input, by its place.
        row: Its row there.
        start: Where the piece begins in it.
        whole: Whether the piece is all of it.
        tokens: The tokens.
        mask: Which of them count for the loss; None where all do.
    """

    file: int
    row: int
    start: int
    whole: bool
    tokens: NDArray[Any]
    mask: NDArray[np.bool_] | None = None

    def part(self, start: int, stop: int) -> Piece:
        """Tokens [start, stop) of this piece."""
        if start == 0 and stop >= len(self.tokens):
            return self
        mask = None if self.mask is None else self.mask[start:stop]
        return Piece(self.file, self.row, self.start + start, False, self.tokens[start:stop], mask)


class SequencePacker(ABC):
    """Takes documents and gives sequences: lists of pieces that together are at most `length` tokens."""

    def __init__(self, length: int) -> None:
        self.length = length

    @abstractmethod
    def add(self, document: Piece) -> Iterator[list[Piece]]:
        """Takes a document that is not empty; yields the sequences that are full by now."""

    @abstractmethod
    def finish(self) -> Iterator[list[Piece]]:
        """Yields the rest; the last one may be short."""


class Concatenate(SequencePacker):
    """One line of tokens, cut every `length`."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._open: list[Piece] = []
        self._room = length

    def add(self, document: Piece) -> Iterator[list[Piece]]:
        """See `SequencePacker`."""
        at = 0
        while at < len(document.tokens):
            piece = document.part(at, at + self._room)
            at += len(piece.tokens)
            self._room -= len(piece.tokens)
            self._open.append(piece)
            if not self._room:
                yield self._open
                self._open, self._room = [], self.length

    def finish(self) -> Iterator[list[Piece]]:
        """See `SequencePacker`."""
        if self._open:
            yield self._open


class BestFit(SequencePacker):
    """Whole documents where they leave the least room, a window at a time.

    Args:
        length: Tokens of a sequence.
        window: How many sequences' worth of tokens are fitted together; about what is held in memory.
    """

    def __init__(self, length: int, *, window: int = _WINDOW_SEQUENCES) -> None:
        super().__init__(length)
        self._window_tokens = window * length
        self._pieces: list[Piece] = []
        self._num_tokens = 0

    def add(self, document: Piece) -> Iterator[list[Piece]]:
        """See `SequencePacker`."""
        for at in range(0, len(document.tokens), self.length):
            piece = document.part(at, at + self.length)
            if len(piece.tokens) == self.length:
                yield [piece]
            else:
                self._pieces.append(piece)
                self._num_tokens += len(piece.tokens)
        if self._num_tokens >= self._window_tokens:
            yield from self.finish()

    def finish(self) -> Iterator[list[Piece]]:
        """See `SequencePacker`. Sequences come in the order of their first pieces, and pieces in theirs."""
        pieces, self._pieces, self._num_tokens = self._pieces, [], 0
        for places in sorted(map(sorted, fitted([len(piece.tokens) for piece in pieces], self.length))):
            yield [pieces[place] for place in places]


def fitted(sizes: list[int], room: int) -> list[list[int]]:
    """Returns bins of `room` by best fit decreasing: each a list of places in `sizes`, each place once.

    Args:
        sizes: Sizes from 1 to `room`.
        room: What a bin holds.
    """
    bins: list[list[int]] = []
    with_room: list[list[int]] = [[] for _ in range(room + 1)]
    rooms = 0  # bit r is set where some bin has room r
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        size = sizes[place]
        fitting = rooms >> size
        if fitting:
            left = size + (fitting & -fitting).bit_length() - 1
            number = with_room[left].pop()
            if not with_room[left]:
                rooms ^= 1 << left
        else:
            left, number = room, len(bins)
            bins.append([])
        bins[number].append(place)
        left -= size
        if left:
            with_room[left].append(number)
            rooms |= 1 << left
    return bins
