"""Things that are opened once per worker and given to handlers by type.

@app.resource
async def http() -> AsyncIterator[Client]:
    async with Client() as client:
        yield client

@app.task
async def ping(url: str, client: Client = INJECTED) -> int: ...
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from pgqueue.errors import InvalidArgument

if TYPE_CHECKING:
    from pgqueue.job import Job

Middleware = Callable[["Job", Callable[[], Awaitable[Any]]], Awaitable[Any]]
_YIELDS = (AsyncIterator, AsyncGenerator, Iterator, Generator, typing.AsyncIterator)


class Resource:
    """A function that makes a resource: plain, async, or a generator that also closes it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        provides = typing.get_type_hints(function).get("return")
        if typing.get_origin(provides) in _YIELDS:
            provides = typing.get_args(provides)[0]
        if provides is None:
            raise InvalidArgument(f"resource {function.__name__} needs a return annotation: it is injected by type")
        self.provides = provides

    async def open(self, stack: AsyncExitStack) -> Any:
        """Open it; the stack closes it."""
        if inspect.isasyncgenfunction(self.function):
            return await stack.enter_async_context(asynccontextmanager(self.function)())
        if inspect.isgeneratorfunction(self.function):
            return stack.enter_context(contextmanager(self.function)())
        made = self.function()
        return await made if inspect.isawaitable(made) else made
