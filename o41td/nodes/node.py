"""A `Node`: something with a `forward`, put together by `>>` into the chains that are sources of a stage.

A source's `forward` takes a `Span` and answers with Arrow; that of every other node takes Arrow rows and answers with
as many. There is no other interface. What is said of a node beside its parameters (a name, where results are kept,
where it runs) is set by methods that return a changed copy, so a node can stand in several chains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from o41td.errors import ConfigError
from o41td.nodes.fingerprint import fingerprint_of
from o41td.nodes.span import Span
from o41td.nodes.store import NodeStore

if TYPE_CHECKING:
    import os

    from o41td.nodes.chain import Chain

__all__ = ["Node", "NodeSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """What is said of a node beside its parameters.

    Attributes:
        name: Its name in errors and status; its class's name if None.
        is_frozen: Whether its version is held to.
        frozen_version: The version it must have; None takes the one it has when it is first used.
        store: Where its results are kept; None keeps none.
        is_mapped: Whether results are kept by each row's content, not by its place.
        place: Where it runs; None is anywhere.
        weight: Its source's share in a mix.
    """

    name: str | None = None
    is_frozen: bool = False
    frozen_version: str | None = None
    store: NodeStore | None = None
    is_mapped: bool = False
    place: str | None = None
    weight: float | None = None


_SETTINGS = "_node_settings"


class Node:
    """A step from rows to as many rows, or a source of rows; subclass it and write `forward`.

    Its attributes are its parameters: they are part of its fingerprint, and travel to the workers with it. What is made
    of them (an open file, a model, a connection) belongs in a `functools.cached_property`: that is neither told apart
    nor sent, but made anew where it is needed.

    A source has, besides, `num_rows`, and `forward` gets a `Span` of them; `version`, if it has one, names its content
    without reading it.

    Attributes:
        revision: Part of the fingerprint: raise it when code that the class calls has changed.
    """

    revision: int | str = 0

    def forward(self, batch: Any) -> Any:
        """Returns the rows that come of `batch`, as many and in its order; a source returns those of a span.

        Args:
            batch: A `pyarrow.RecordBatch`, or a `Span` where this is a source.

        Returns:
            A `pyarrow.RecordBatch` or `Table`.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has no forward")

    @property
    def version(self) -> str | None:
        """A digest that names the content of a source without reading it; None where there is none."""
        return None

    # ---- what is said of it ----------------------------------------------------------------------------------------

    def named(self, name: str) -> Self:
        """This node under a name."""
        given: object = name
        if not isinstance(given, str) or not given.strip():
            raise ConfigError(f"a node's name is {name!r}, not a text")
        return self._with(name=name)

    def frozen(self, version: str | None = None) -> Self:
        """This source held to its version: once it has another one, nothing more is read of it.

        Args:
            version: The version that it must have; if left out, the one it has when it is first used.
        """
        return self._with(is_frozen=True, frozen_version=version)

    def cached(self, store: NodeStore | str | os.PathLike[str] | None = None) -> Self:
        """This node with its results kept: in a folder, or under a URL, or in the user's own cache folder."""
        return self._with(store=NodeStore.of(store))

    def mapped(self, store: NodeStore | str | os.PathLike[str] | None = None) -> Self:
        """This node with its results kept row by row, by each row's content: rows that are moved or repeated are found.

        Only for nodes whose result of a row depends on that row alone.
        """
        return self._with(is_mapped=True, store=NodeStore.of(store) if store is not None else self.settings.store)

    def at(self, place: str) -> Self:
        """This node run where `place` names: a resource of the cluster, under an engine that has one."""
        return self._with(place=place)

    def weighted(self, weight: float) -> Self:
        """This source with a share in the mix of its stage."""
        given: object = weight
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
            raise ConfigError(f"a weight is {weight!r}, not a finite number above 0")
        return self._with(weight=float(weight))

    def _with(self, **changes: Any) -> Self:
        changed = object.__new__(type(self))  # with what it keeps, which copy.copy leaves out as pickle does
        vars(changed).update(vars(self))
        vars(changed)[_SETTINGS] = replace(self.settings, **changes)
        return changed

    # ---- what it is ------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> NodeSettings:
        """What is said of it."""
        settings: NodeSettings = vars(self).get(_SETTINGS, _DEFAULT)
        return settings

    @property
    def label(self) -> str:
        """Its name, or its class's."""
        return self.settings.name or type(self).__name__

    @property
    def is_source(self) -> bool:
        """Whether it answers spans: whether it has `num_rows`."""
        return "num_rows" in vars(self) or hasattr(type(self), "num_rows")

    def parameters(self) -> dict[str, Any]:
        """Its attributes by name, without what it keeps for itself."""
        return {name: value for name, value in vars(self).items() if not self._is_own(name)}

    def fingerprint(self) -> str:
        """A digest of its class, that class's text, and its parameters."""
        return fingerprint_of(self, self.parameters(), base=Node)

    def key(self, span: Span) -> str:
        """As `Chain.key`, of this source alone."""
        return self.chain().key(span)

    def chain(self) -> Chain:
        """The chain of this node alone."""
        from o41td.nodes.chain import Chain

        return Chain([self])

    def _is_own(self, name: str) -> bool:
        """Whether an attribute is no parameter: a setting, or what a cached property keeps."""
        return name == _SETTINGS or isinstance(getattr(type(self), name, None), cached_property)

    def __rshift__(self, then: Node | Chain) -> Chain:
        return self.chain() >> then

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name == _SETTINGS or not self._is_own(name)}

    def __repr__(self) -> str:
        parameters = ", ".join(f"{name}={value!r}" for name, value in self.parameters().items())
        return f"{type(self).__name__}({parameters})"


_DEFAULT = NodeSettings()
