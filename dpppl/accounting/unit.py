"""The unit of privacy: a row, all rows of a person, or any rows of a person up to a declared number."""

from dataclasses import dataclass

from dpppl.accounting.relations import relation_of
from dpppl.errors import ConfigurationError
from dpppl.validation import positive_integer


@dataclass(frozen=True)
class Unit:
    """The unit of privacy.

    - **ids** - name of the argument of a run that holds one id a row: rows with one id are one record. None: a row is one.
    - **max_rows** - the most rows of a unit that are used, or, without ids, that are assumed to be one person's."""

    ids: str | None = None
    max_rows: int = 1

    @classmethod
    def of(cls, unit: object, max_rows_per_unit: object) -> "Unit":
        """From a method's arguments. Raises ConfigurationError if they do not fit together."""
        if unit is not None and not isinstance(unit, str):
            raise ConfigurationError(
                f"unit is the name under which run gets the ids, so that no object keeps them, got a {type(unit).__name__}: give "
                'unit="person", max_rows_per_unit=..., and then run(rng_key, ..., person=ids).'
            )
        if unit is not None and max_rows_per_unit is None:
            raise ConfigurationError(
                f"unit={unit!r} needs max_rows_per_unit, the most rows of one {unit} that are used: a public number, chosen "
                "without looking at the data."
            )
        if max_rows_per_unit is None:
            return cls()
        return cls(unit, positive_integer(max_rows_per_unit, name="max_rows_per_unit"))

    @property
    def group_size(self) -> int:
        """Rows of one person that the account treats as a group."""
        return self.max_rows if self.ids is None else 1

    def check_grouped(self, is_grouped: bool) -> None:
        """Raise ConfigurationError for calls that take single rows where the unit is larger."""
        if self.ids is not None and not is_grouped:
            raise ConfigurationError(
                f"this looks at single rows, and the unit here is all rows with one '{self.ids}': use run and estimate_elbo, "
                "which know units, or an object without unit."
            )

    @property
    def noun(self) -> str:
        """The noun for what N counts."""
        return "row" if self.ids is None else "unit"

    def describe(self) -> str:
        """The unit in words, for the report."""
        if self.ids is not None:
            return f"all rows with one '{self.ids}', of which at most {self.max_rows} are used"
        if self.max_rows > 1:
            return f"at most {self.max_rows} rows of one person, as a group"
        return "one row"

    def relation(self, neighboring_relation: str) -> str:
        """Neighbouring data sets, in words."""
        text = relation_of(neighboring_relation).words.format(unit=self.noun)
        return (
            text if self.group_size == 1 else text.replace("one row", f"the at most {self.max_rows} rows of a person")
        )

    def check_ledger(self, unit: str) -> None:
        """Raise ConfigurationError unless a ledger counts for this unit."""
        own = "row" if self.ids is None else self.ids
        if self.group_size > 1:
            raise ConfigurationError(
                "a ledger counts for one row or for units with ids, not for groups of declared size: give the ids, unit=..., or "
                "leave max_rows_per_unit out and read report.epsilon_for_group."
            )
        if unit != own:
            raise ConfigurationError(
                f"this ledger counts for one {unit}, and this run for one {own}: costs for different units do not add up. Keep a "
                f"ledger for each: dpppl.PrivacyLedger(path, epsilon, delta, unit={own!r})."
            )

    def assumptions(self) -> list[str]:
        """Sentences for the report."""
        if self.ids is not None:
            return [
                f"The unit of privacy is all rows with one '{self.ids}' (a person, say), a single record to the mechanism. If it "
                f"has more than {self.max_rows} rows, {self.max_rows} are used, chosen at random for this run: how often that "
                "happens is not told. Rows without an id are left out.",
                "The number of units is public: it decides array shapes and running time.",
            ]
        public = "The number of rows is public: it decides array shapes, running time and the cap on a step's rows."
        if self.max_rows > 1:
            return [
                f"The unit of privacy is one person with at most {self.max_rows} rows, by the group privacy of the account; that "
                "nobody has more is declared, not checked, and whoever has more is protected less.",
                public,
            ]
        return [
            "The unit of privacy is one row; rows are independent units (one person's several rows are a group).",
            public,
        ]


ROW = Unit()
