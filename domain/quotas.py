"""How much one owner, and all owners together, may have stored and under way."""

from dataclasses import astuple, dataclass, fields


@dataclass(frozen=True)
class Quotas:
    """Largest numbers that opening one more task may reach; None for no limit.

    `tasks` counts all that are stored, `working` and `parked` those of that status, `bytes` what
    their events take. What is under way already is never cut off by a quota.
    """

    tasks_per_owner: int | None = None
    working_per_owner: int | None = None
    parked_per_owner: int | None = None
    bytes_per_owner: int | None = None
    tasks: int | None = None
    working: int | None = None
    parked: int | None = None
    bytes: int | None = None

    @property
    def most(self) -> tuple[int | None, ...]:
        """All of them, in their order."""
        return astuple(self)

    @classmethod
    def name_of(cls, number: int) -> str:
        """The name of the quota at this place, counted from 1."""
        return fields(cls)[number - 1].name
