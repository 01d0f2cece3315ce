"""Whether a command that a document shows is one that there is."""

from __future__ import annotations

import re
from typing import Any

from typer.main import get_command

from pgqueue import cli


def wrong_with(words: list[str]) -> str | None:
    """None if the sub-command and all of its long options exist."""
    command: Any = get_command(cli.app)
    rest = words[1:]
    while rest and "commands" in vars(command) and not rest[0].startswith("-"):
        if rest[0] not in command.commands:
            return f"there is no command {rest[0]!r}"
        command = command.commands[rest.pop(0)]
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    unknown = [word for word in rest if re.match(r"--\w", word) and word.split("=")[0] not in known]
    return f"there is no option {unknown[0]}" if unknown else None
