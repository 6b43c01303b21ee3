"""A chain of nodes as a source of a stage: `ChainSource`, which a chain in `sources` becomes by itself."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from o41td.config_model import ConfigModel, Listed, Name, positive_number
from o41td.errors import ConfigError
from o41td.field_config import ProjectedField
from o41td.nodes import Chain, Node
from o41td.nodes.fingerprint import digest_parts

__all__ = ["ChainSource", "with_chains"]


class ChainSource(ConfigModel):
    """What comes of a chain of nodes.

    A document says of the nodes only what they are called and their fingerprints: they are code, which whoever resumes
    has to bring along.

    Attributes:
        chain: The chain; None where the source was read from a document.
        nodes: Of each node its name, its class, its fingerprint.
        weight: The share in the mix; the chain's own if left out.
        name: The name in status, errors and checkpoints; the chain's own if left out.
        fields: Fields that differ for this source, by name; keys left out keep the config's.
    """

    shown_name = "chain of nodes"

    chain: Annotated[Any, Field(exclude=True, repr=False)] = None
    nodes: Annotated[Sequence[tuple[str, str, str]], Listed] = ()
    name: Name | None = None
    weight: Annotated[float, BeforeValidator(positive_number)] = 1.0
    fields: Annotated[Sequence[ProjectedField], Listed] = ()

    @model_validator(mode="before")
    @classmethod
    def _from_chain(cls, value: Any) -> Any:
        if isinstance(value, Chain | Node):
            value = {"chain": value}
        chain = value.get("chain") if isinstance(value, Mapping) else None
        if chain is None:
            return value
        chain = chain.chain() if isinstance(chain, Node) else chain
        if not isinstance(chain, Chain) or chain.source is None:
            raise ConfigError(
                problems=[("", f"{chain!r} begins with no source; put one before it, such as Parquet(files)")]
            )
        own = {"weight": chain.weight} if chain.name is None else {"weight": chain.weight, "name": chain.name}
        nodes = [
            (node.label, f"{type(node).__module__}.{type(node).__qualname__}", node.fingerprint())
            for node in chain.nodes
        ]
        return {**own, **value, "chain": chain, "nodes": nodes}

    @property
    def fingerprint(self) -> str:
        """A digest of the fingerprints of all nodes."""
        digest = hashlib.blake2b(digest_size=16)
        digest_parts(digest, *(fingerprint.encode() for _label, _cls, fingerprint in self.nodes))
        return digest.hexdigest()

    def relative_to(self, folder: str) -> Self:  # noqa: ARG002 - paths in nodes are the program's own
        """This source; a config file has none."""
        return self


def with_chains(document: Mapping[str, Any], chains: Mapping[str, Chain | Node]) -> dict[str, Any]:
    """Returns a config's document with the chains of its sources put in.

    Args:
        document: The document.
        chains: Chains by the name of their source, or by `stage/source` in the whole stream.

    Raises:
        ConfigError: A source has nodes that are not given, or other ones; or a chain is for no source.
    """
    unused = set(chains)
    stages = []
    for stage_index, stage in enumerate(document.get("stages", ())):
        sources = []
        for source_index, source in enumerate(stage.get("sources", ())):
            if source.get("nodes"):
                name = source.get("name") or f"source{source_index}"
                key = f"{stage.get('name') or f'stage{stage_index}'}/{name}"
                given = chains.get(key, chains.get(name))
                unused -= {key, name}
                sources.append(_filled(source, given, key))
            else:
                sources.append(source)
        stages.append({**stage, "sources": sources})
    if unused:
        raise ConfigError(
            f"chains are given for {', '.join(map(repr, sorted(unused)))}, which no source of the stream is"
        )
    return {**document, "stages": stages}


def _filled(source: Mapping[str, Any], given: Chain | Node | None, key: str) -> dict[str, Any]:
    named = " >> ".join(label for label, _cls, _fingerprint in source["nodes"])
    if given is None:
        raise ConfigError(
            f"source {key!r} is a chain of nodes, {named}, and a document holds no code",
            advice=f"Bring it along: resume_batch_stream(checkpoint, chains={{{key!r}: ...}})",
        )
    filled = ChainSource(chain=given)
    for was, now in zip(source["nodes"], filled.nodes, strict=False):
        if tuple(was) != tuple(now):
            raise ConfigError(
                f"source {key!r}: node {was[0]!r} is not what it was: {was[1]} {was[2]} then, {now[1]} {now[2]} now",
                advice="Resume with the nodes of then, or begin a new stream",
            )
    if len(source["nodes"]) != len(filled.nodes):
        raise ConfigError(f"source {key!r} was the chain {named}, and is {given!r} now")
    return {**source, "chain": filled.chain}
