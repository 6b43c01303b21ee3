"""Sources are nodes: what a source answers and what is made of it, by one method.

Parquet(files).named("rows").frozen()  >>  Tokenize().named("tok").cached(store)  >>  Pack()
  │ forward(Span) -> rows                    │ forward(rows) -> as many rows
  └ version: names its content               └ fingerprint: names its class, text and parameters

key(Span) = digest(version, fingerprints, at, take): names a result before it is there
"""

from o41td.nodes.chain import Chain
from o41td.nodes.node import Node
from o41td.nodes.span import Span
from o41td.nodes.store import NodeStore

__all__ = ["Chain", "Node", "NodeStore", "Span"]
