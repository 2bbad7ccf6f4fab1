"""Relations between neighbouring data sets: what they are called, and how far neighbours move a sum of clipped rows."""

from dataclasses import dataclass

from dpppl.errors import ConfigurationError


@dataclass(frozen=True)
class Relation:
    """Which data sets are neighbours.

    - **words** - for reports; holds {unit}, what N counts.
    - **can_tell** - what an attacker tries to find out of one person.
    - **sensitivity** - largest L2 change of a sum of rows that are clipped to norm 1."""

    words: str
    can_tell: str
    sensitivity: float


_USED = "whether one person's record was used"
RELATIONS = {
    "zero_out": Relation("add or remove one {unit}, N public (zero-out)", _USED, 1.0),
    "add_or_remove_one": Relation("add or remove one {unit}", _USED, 1.0),
    "replace_one": Relation("replace one {unit}", "which of two records one person had", 2.0),
}


def relation_of(neighboring_relation: str) -> Relation:
    """The relation of this name. Raises ConfigurationError for an unknown relation.

    >>> relation_of("replace_one").sensitivity
    2.0
    """
    if neighboring_relation not in RELATIONS:
        raise ConfigurationError(
            f"neighboring_relation {neighboring_relation!r} must be one of {', '.join(RELATIONS)}."
        )
    return RELATIONS[neighboring_relation]
