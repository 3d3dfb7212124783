"""What a server says of its own changes: the topics, and the stream that a modern one tells them
on. Not here: who wants to hear it."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from mcp import ClientSession, MCPError
from mcp.client.subscriptions import listen
from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PromptListChangedNotification,
    ResourceListChangedNotification,
    ResourceUpdatedNotification,
    ServerCapabilities,
    ToolListChangedNotification,
)

from .upstream_backoff import backoff_s, failures_after

TOOLS, PROMPTS, RESOURCES = "toolsListChanged", "promptsListChanged", "resourcesListChanged"
LISTS = frozenset({TOOLS, PROMPTS, RESOURCES})
SUBSCRIPTIONS = "resourceSubscriptions"

logger = logging.getLogger(__name__)


def offered_by(capabilities: ServerCapabilities | None) -> frozenset[str]:
    """The lists that a server says it announces, and SUBSCRIPTIONS; both eras say it alike."""
    if capabilities is None:
        return frozenset()
    parts = {
        TOOLS: capabilities.tools,
        PROMPTS: capabilities.prompts,
        RESOURCES: capabilities.resources,
    }
    offered = {topic for topic, part in parts.items() if part is not None and part.list_changed}
    if capabilities.resources is not None and capabilities.resources.subscribe:
        offered.add(SUBSCRIPTIONS)
    return frozenset(offered)


def topic_of(news: object) -> str | None:
    """The topic of a notification or event; None when it has none."""
    match news:
        case ToolListChangedNotification() | ToolsListChanged():
            return TOOLS
        case PromptListChangedNotification() | PromptsListChanged():
            return PROMPTS
        case ResourceListChangedNotification() | ResourcesListChanged():
            return RESOURCES
        case ResourceUpdatedNotification():
            return str(news.params.uri)
        case ResourceUpdated():
            return news.uri
        case _:
            return None


class Stream:
    """One `subscriptions/listen`, opened again whenever it is lost.

    Nothing is replayed, so all of its topics are told each time it is opened again.
    """

    def __init__(
        self,
        session: ClientSession,
        topics: Collection[str],
        tell: Callable[[str], None],
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        self.tried = asyncio.Event()  # acknowledged, or failed, for the first time
        self._session, self._topics = session, topics
        self._tell, self._on_loss = tell, on_loss

    async def run(self) -> None:
        """Listen until cancelled, or until the server says that it cannot be listened to."""
        failures, can_listen = 0, True
        while can_listen:
            began = time.monotonic()
            try:
                await self._listen()
            # The SDK's loss of a stream is a RuntimeError, as is its refusal on a dead session.
            except (MCPError, RuntimeError, TimeoutError) as error:
                logger.debug("a stream of announcements was lost", exc_info=True)
                code = error.code if isinstance(error, MCPError) else None
                can_listen = code not in {METHOD_NOT_FOUND, INVALID_PARAMS}
            self.tried.set()
            self._on_loss()
            failures = failures_after(failures, time.monotonic() - began)
            await asyncio.sleep(backoff_s(failures))  # noqa: TID251 - before the next try

    async def _listen(self) -> None:
        async with listen(
            self._session,
            tools_list_changed=TOOLS in self._topics,
            prompts_list_changed=PROMPTS in self._topics,
            resources_list_changed=RESOURCES in self._topics,
            resource_subscriptions=sorted(set(self._topics) - LISTS),
        ) as changes:
            if self.tried.is_set():
                for topic in self._topics:
                    self._tell(topic)
            self.tried.set()
            async for event in changes:
                if topic := topic_of(event):
                    self._tell(topic)
