"""What the generated types of ACP are made of: their base, and types for members that a tag does not tell apart."""

from abc import ABC
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from msgspec import Struct, field

from sandbox_agent.envelope import Object


class Acp(Struct, rename="camel", frozen=True, omit_defaults=True, kw_only=True):
    """A type of ACP. Members that it does not know are passed over when it is read."""

    DEFAULTED: ClassVar[frozenset[str]] = frozenset()
    """Attributes that are left at their default when what came for them cannot be read."""
    FILTERED: ClassVar[frozenset[str]] = frozenset()
    """Lists from which items that cannot be read are left out."""

    field_meta: Object | None = field(default=None, name="_meta")
    """Extension data, under vendor keys."""


class UntaggedResource(ABC):  # noqa: B024 - it is only asked what is one
    """A text, or bytes. msgspec leaves a type that it does not know to a hook, which `wire.reading` has."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return issubclass(other, Acp)


class UntaggedOptions(list[object]):
    """Options, or groups of them; likewise."""


if TYPE_CHECKING:
    from sandbox_agent.wire.acp import (
        BlobResourceContents,
        SessionConfigSelectGroup,
        SessionConfigSelectOption,
        TextResourceContents,
    )

    ResourceContents: TypeAlias = TextResourceContents | BlobResourceContents
    SelectOptions: TypeAlias = list[SessionConfigSelectOption] | list[SessionConfigSelectGroup]
else:
    ResourceContents = UntaggedResource
    SelectOptions = UntaggedOptions
