"""What the commands write to standard error: lines for a person on a terminal, JSON for a machine.

Only the logger `pgqueue` gets a handler: the root logger belongs to the application. What the application logs while it
has not configured logging, Python writes as bare text to standard error, warnings and worse; that goes the same way as
our own lines, so that machines can read it. As soon as the application has a handler of its own, it has its own way.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Literal, TextIO

from pgqueue.job import log_fields

Format = Literal["auto", "text", "json"]
_FIELDS = ("job_id", "task", "queue", "attempt")
_COLOURS = {"WARNING": "\033[33m", "ERROR": "\033[31m", "CRITICAL": "\033[31m"}

chosen: tuple[str, Format] | None = None  # in this process; those that run jobs for it do the same


def set_up(level: str = "info", format: Format = "auto") -> None:
    global chosen
    person = format == "text" or (format == "auto" and sys.stderr.isatty())
    chosen = level, "text" if person else "json"
    logger = logging.getLogger("pgqueue")
    logger.handlers[:] = [_handler(person)]
    logger.setLevel(level.upper())
    logger.propagate = False
    logging.lastResort = _handler(person)
    logging.lastResort.setLevel(logging.WARNING)


def _handler(person: bool) -> logging.StreamHandler[TextIO]:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Text(colours=sys.stderr.isatty()) if person else _Json())
    handler.addFilter(JobFields())
    return handler


class JobFields(logging.Filter):
    """Gives every record that is made inside a handler the fields job_id, task, queue and attempt. For the handlers of
    an application: `logging.getLogger().handlers[0].addFilter(JobFields())`."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not _ours(record):  # ours say themselves what they are about, whatever job they were called from
            for name, value in log_fields().items():
                if not hasattr(record, name):
                    setattr(record, name, value)
        return True


def _ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == "pgqueue"


class _Text(logging.Formatter):
    def __init__(self, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = record.getMessage()
        if not _ours(record):
            text = f"{record.name}: {text}{f' (job {record.job_id})' if hasattr(record, 'job_id') else ''}"
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        colour = _COLOURS.get(record.levelname, "") if self._colours else ""
        return (
            f"{at} {colour}{record.levelname.lower():7}\033[0m {text}"
            if colour
            else f"{at} {record.levelname.lower():7} {text}"
        )


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "logger": record.name,
            **{name: getattr(record, name) for name in _FIELDS if hasattr(record, name)},
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)
