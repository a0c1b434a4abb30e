"""The cap of a sweep in slices: a table of ours beside Optuna's, in the study's database.

A row is a slice: what a trial, or a run that confirms, may spend in all; once it has ended, what it
spent. A slice is reserved in one transaction that alone reads and writes the study's rows (SQLite:
BEGIN IMMEDIATE; PostgreSQL and MySQL: a lock on the study's first row), so that their sum can't
pass the cap, whichever thread, process or machine reserves. A killed process's slices stay reserved
until its folder takes them up again. Amounts are whole nano-dollars, so that sums are exact.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from orchestry.core.errors import ConfigError, OrchestryError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, Table

State = Literal["open", "ended", "failed"]
"""A failed trial's dollars count, and the trial does not."""
TRIAL, CONFIRM = "trial-", "confirm"
"""How the keys of trials begin; the row of the machine that confirms."""
_HEAD = "sweep"
"""The key of the study's first row: its identity, and what its trials have in common."""
_DATABASES = ("sqlite", "postgresql", "mysql", "mariadb")


class Spent(OrchestryError):
    """Nothing is left of the cap."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One row."""

    key: str
    owner: str
    """The sweep folder that plays it."""
    nano: int
    """Nano-dollars that it may spend in all; once it has ended, those that it spent."""
    state: State


Share = Callable[[Sequence[Slice]], Fraction | None]
"""By all other slices, the part of what is left; None: there is nothing to play."""


class Slices:
    """The slices of one study."""

    def __init__(self, engine: Engine, study: str, asked: Mapping[str, Any]) -> None:
        """`asked`: what its trials have in common, written by the first machine. Raises ConfigError
        for a database whose locks we don't know."""
        if engine.dialect.name not in _DATABASES:
            raise ConfigError(
                f"config key 'storage': {engine.dialect.name} is no database of sweeps: give an "
                f"address of {', '.join(_DATABASES)}"
            )
        self._engine, self._study, self._table = engine, study, _table()
        self._create()
        self.id, self.asked = self._began(json.dumps(asked))

    def _create(self) -> None:
        from sqlalchemy.exc import DBAPIError

        try:
            self._table.metadata.create_all(self._engine)
        except DBAPIError:  # another machine made it meanwhile
            self._table.metadata.create_all(self._engine)

    def _began(self, asked: str) -> tuple[str, Any]:
        """The study's identity, and what was asked of it first."""
        from sqlalchemy.exc import IntegrityError

        try:
            with self._engine.begin() as connection:
                self._insert(connection, Slice(_HEAD, uuid.uuid4().hex, 0, "ended"), asked)
        except IntegrityError:  # there it is
            pass
        with self._engine.connect() as connection:
            found = connection.execute(self._table.select().where(self._at(_HEAD))).one()
        return str(found.owner), json.loads(found.note)

    def all(self) -> list[Slice]:
        """All slices, as they are now."""
        with self._engine.connect() as connection:
            return self._rows(connection)

    def reserve(
        self, key: str, owner: str, share: Share, cap: int | None, spent: int = 0
    ) -> int | None:
        """Reserves a slice of what is left of `cap`, or takes one up again, of which `spent` is
        gone; the nano-dollars that it may spend in all (0 without a cap).

        None: `share` has nothing to play. Raises Spent if nothing is left, and keeps a slice that
        is taken up as it was."""
        with self._alone() as connection:
            rows = self._rows(connection)
            others = [row for row in rows if row.key != key]
            own = next((row for row in rows if row.key == key), None)
            if (part := share(others)) is None:
                return None
            amount = 0 if cap is None else _amount(others, own, part, cap, spent)
            self._put(connection, Slice(key, owner, amount, "open"), own is not None)
            return amount

    def settle(self, key: str, spent: int, state: State) -> None:
        """A slice ended: what it did not spend is free again."""
        with self._alone() as connection:
            self._update(connection, key, nano=spent, state=state)

    def renew(
        self, owner: str, known: Mapping[str, tuple[int, State]], cap: int | None = None
    ) -> None:
        """Brings a folder's slices up to its journals, and drops those that no run belongs to. If
        the cap is lower than it was, the folder's open slices give back what is too much.

        `known`: by key, what was spent so far, and the state. None of them is played now."""
        with self._alone() as connection:
            rows = self._rows(connection)
            own = [row for row in rows if row.owner == owner and row.key != CONFIRM]
            for row in own:
                if row.key not in known:
                    connection.execute(self._table.delete().where(self._at(row.key)))
            now = {row.key: _now(row, *known[row.key]) for row in own if row.key in known}
            others = sum(row.nano for row in rows if row not in own)
            excess = 0 if cap is None else others + sum(now.values()) - cap
            loose = sum(amount - known[key][0] for key, amount in now.items())
            for key, amount in now.items():
                spent, state = known[key]
                if excess > 0 and loose:
                    amount = spent + (amount - spent) * max(0, loose - excess) // loose
                self._update(connection, key, nano=amount, state=state)

    def drop(self, key: str) -> None:
        """Gives back a slice of which nothing was spent."""
        with self._alone() as connection:
            connection.execute(self._table.delete().where(self._at(key)))

    def give_up(self, owner: str) -> None:
        """A folder's open slices fail, and keep what they hold; it no longer confirms the best."""
        with self._alone() as connection:
            for row in self._rows(connection):
                if row.owner == owner and row.key == CONFIRM:
                    connection.execute(self._table.delete().where(self._at(row.key)))
                elif row.owner == owner and row.state == "open":
                    self._update(connection, row.key, state="failed")

    def confirms(self, owner: str) -> str:
        """The folder that confirms the best: the first to ask once no trial is open; '' as long as
        one is."""
        with self._alone() as connection:
            rows = self._rows(connection)
            if first := next((row.owner for row in rows if row.key == CONFIRM), ""):
                return first
            if any(row.key.startswith(TRIAL) and row.state == "open" for row in rows):
                return ""
            self._insert(connection, Slice(CONFIRM, owner, 0, "ended"))
            return owner

    @contextmanager
    def _alone(self) -> Iterator[Connection]:
        """A transaction, during which no other one of ours reads or writes this study's rows."""
        if self._engine.dialect.name == "sqlite":
            # Without this, pysqlite begins at the first write, after what was read is old.
            level = self._engine.execution_options(isolation_level="AUTOCOMMIT")
            with level.connect() as connection:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.exec_driver_sql("COMMIT")
                except BaseException:
                    connection.exec_driver_sql("ROLLBACK")
                    raise
            return
        # Each statement sees what was committed before it, so behind the lock nothing is old.
        level = self._engine.execution_options(isolation_level="READ COMMITTED")
        with level.begin() as connection:
            connection.execute(self._table.select().where(self._at(_HEAD)).with_for_update()).one()
            yield connection

    def _at(self, key: str) -> Any:
        return (self._table.c.study == self._study) & (self._table.c.key == key)

    def _rows(self, connection: Connection) -> list[Slice]:
        mine = self._table.c.study == self._study
        found = connection.execute(self._table.select().where(mine)).all()
        return [Slice(r.key, r.owner, r.nano, r.state) for r in found if r.key != _HEAD]

    def _put(self, connection: Connection, row: Slice, there: bool) -> None:
        if there:
            self._update(connection, row.key, owner=row.owner, nano=row.nano, state=row.state)
        else:
            self._insert(connection, row)

    def _insert(self, connection: Connection, row: Slice, note: str = "") -> None:
        values = {name: getattr(row, name) for name in ("key", "owner", "nano", "state")}
        connection.execute(self._table.insert().values(study=self._study, note=note, **values))

    def _update(self, connection: Connection, key: str, **values: Any) -> None:
        connection.execute(self._table.update().where(self._at(key)).values(**values))


def _table() -> Table:
    from sqlalchemy import BigInteger, Column, MetaData, String, Table, Text

    return Table(
        "orchestry_slices",
        MetaData(),
        Column("study", String(255), primary_key=True),
        Column("key", String(100), primary_key=True),
        Column("owner", String(255), nullable=False),
        Column("nano", BigInteger, nullable=False),
        Column("state", String(10), nullable=False),
        Column("note", Text, nullable=False),
    )


def _now(row: Slice, spent: int, state: State) -> int:
    """What a slice holds, given what was spent so far."""
    return max(row.nano, spent) if state == "open" else spent


def _amount(
    others: Sequence[Slice], own: Slice | None, part: Fraction, cap: int, spent: int
) -> int:
    """The nano-dollars of a slice. Raises Spent.

    An open slice that is taken up stays, and may grow to the part that it would have today; one
    that had ended gets a part beside what it spent."""
    left = cap - sum(row.nano for row in others)
    if left < spent or (left == spent and cap):
        raise Spent("nothing is left of the cap")
    still = own.nano if own is not None and own.state == "open" else 0
    base = 0 if still else spent
    return min(left, max(still, spent, base + int((left - base) * part)))
