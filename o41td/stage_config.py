"""What a user says of one stage of the curriculum: `Stage`, `Shuffle`."""

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from o41td.config_model import ConfigModel, Flag, Listed, Name, whole_number
from o41td.errors import ConfigError
from o41td.source_config import Source, refuse_repeats

__all__ = ["Shuffle", "Stage"]


class Shuffle(ConfigModel):
    """Shuffles a stage: units over the whole data set, rows within a window.

    Attributes:
        buffer_rows: The window, in rows of a source in a lane: no row moves by as many or more.
    """

    shown_name = "shuffle"

    buffer_rows: Annotated[int, BeforeValidator(whole_number(1, 2**32 - 1, high_name="2^32-1"))]


class Stage(ConfigModel):
    """A weighted mix of sources, in batches of one size.

    Attributes:
        sources: At least one `FileSource`, `ManifestSource`, or chain of nodes.
        batch_size: Rows in a batch.
        shuffle: None keeps the listed order.
        infinite: Whether sources start over, each on its own, for ever.
        drop_last: Whether a partial batch at the end of a finite stage is dropped.
        name: The name in batches, status and errors; `stage0`, `stage1`, … by its place if left out.
    """

    shown_name = "stage"

    sources: Annotated[Sequence[Source], Listed, Field(min_length=1)]
    batch_size: Annotated[int, BeforeValidator(whole_number(1, 2**31 - 1))]
    shuffle: Shuffle | None = None
    infinite: Flag = False
    drop_last: Flag = False
    name: Name | None = None

    @property
    def source_names(self) -> tuple[str, ...]:
        """The sources' names; one without a name is `source0`, `source1`, … by its place."""
        return tuple(source.name or f"source{index}" for index, source in enumerate(self.sources))

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        try:
            refuse_repeats("source", self.source_names)
        except ValueError as error:
            raise ConfigError(problems=[("sources", str(error))]) from None
        return self

    def relative_to(self, folder: str) -> Self:
        """This stage with relative local paths taken from a folder."""
        return self.model_copy(update={"sources": tuple(source.relative_to(folder) for source in self.sources)})
