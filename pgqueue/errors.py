"""What can go wrong, as types.

    PgqueueError
    ├── ConfigError            no database named, a setting that makes no sense
    ├── EmbeddedError          the embedded PostgreSQL cannot do what was asked
    ├── SchemaError            the pgqueue schema is missing, older or newer than this code
    ├── PayloadError           a payload that is not plain JSON, too deep or too big           (PQ006)
    ├── InvalidArgument        a name, policy, time or number that the queue does not accept   (PQ001)
    ├── JobNotFound            no job has this id                                              (PQ002)
    ├── WrongStatus            the job is not in a status from which this can be done          (PQ003)
    ├── KeyTaken               another job holds the idempotency key                           (PQ004)
    ├── QueueFull              the queue has max_depth jobs waiting; `retry_after` says when to try again    (PQ007)
    ├── WorkerLost             the worker is unknown or was declared lost: register again      (PQ005)
    ├── LeaseLost              the job belongs to another worker now; what was written is undone
    ├── JobDead                the job whose result was awaited died
    ├── JobCancelled           the job whose result was awaited was cancelled
    └── ResultTimeout          the result did not come in time

SQL functions raise the PQ… codes; `from_sqlstate` is the one place that turns them into these types.
PostgreSQL's own errors pass untouched.
"""

from __future__ import annotations

import re
from typing import Any

import psycopg


class PgqueueError(Exception):
    """Something in pgqueue went wrong."""


class ConfigError(PgqueueError):
    """The configuration is incomplete or contradicts itself."""


class EmbeddedError(PgqueueError):
    """The embedded PostgreSQL cannot do what was asked."""


class SchemaError(PgqueueError):
    """The pgqueue schema does not fit this version of pgqueue."""


class PayloadError(PgqueueError):
    """The payload cannot be stored."""


class InvalidArgument(PgqueueError):
    """The queue does not accept this value."""


class JobNotFound(PgqueueError):
    """There is no such job."""


class WrongStatus(PgqueueError):
    """The job's status does not allow this."""


class KeyTaken(PgqueueError):
    """Another job holds this idempotency key."""


class QueueFull(PgqueueError):
    """The queue takes no more jobs now."""

    @property
    def retry_after(self) -> float:
        """In so many seconds there should be room."""
        found = re.search(r"Try again in ([\d.]+) s", str(self))
        return float(found[1]) if found else 1.0


class WorkerLost(PgqueueError):
    """The worker is unknown or was declared lost."""


class LeaseLost(PgqueueError):
    """The job belongs to another worker now."""


class _Ended(PgqueueError):
    def __init__(self, message: str, info: Any = None) -> None:
        super().__init__(message)
        self.info = info  # database.JobInfo


class JobDead(_Ended):
    """The job died."""


class JobCancelled(_Ended):
    """The job was cancelled."""


class ResultTimeout(PgqueueError, TimeoutError):
    """The job has not finished in time."""


_BY_SQLSTATE: dict[str, type[PgqueueError]] = {
    "PQ001": InvalidArgument,
    "PQ002": JobNotFound,
    "PQ003": WrongStatus,
    "PQ004": KeyTaken,
    "PQ005": WorkerLost,
    "PQ006": PayloadError,
    "PQ007": QueueFull,
}

_SCHEMA_MISSING = {"3F000", "42883", "42P01"}  # invalid schema name, undefined function, undefined table


def from_sqlstate(sqlstate: str | None, message: str | None, hint: str | None) -> PgqueueError | None:
    """Our exception for one of our SQLSTATEs, whichever driver brought it; None for anything else."""
    kind = _BY_SQLSTATE.get(sqlstate or "")
    if kind is not None:
        return kind(f"{message} {hint}" if hint else message)
    if sqlstate in _SCHEMA_MISSING and "pgqueue" in (message or ""):
        return SchemaError(f"{message}: run `pgqueue migrate` on this database first")
    return None


def from_postgres(error: psycopg.Error) -> Exception:
    """Our exception for one of our SQLSTATEs; the error itself for anything else."""
    return from_sqlstate(error.sqlstate, error.diag.message_primary, error.diag.message_hint) or error
