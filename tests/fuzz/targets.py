"""What inputs are thrown at: the base of all, `POST /mcp` and `/ws`."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import anyio.to_thread
import websockets
from websockets.sync.client import ClientConnection, connect

from outlast.tests.fuzz import judging
from outlast.tests.fuzz.campaign import Campaign
from outlast.tests.fuzz.chance import Chance
from outlast.tests.fuzz.messages import Messages, headers_of, request_of
from outlast.tests.fuzz.wire import PATIENCE_S, Answer, Line, Request
from outlast.tests.fuzz.world import ALICE, World

FRAME_BYTES_MAX = 2**24


class Target:
    """One way in. `last` is what went in last, and `told` makes one outcome of the answer."""

    def __init__(self, here: World, line: Line) -> None:
        self.here, self.line = here, line
        self.messages = Messages(here.task_ids, here.hook)
        self.last: Any = None

    async def runs(self, name: str, trial: Callable[[Chance], str]) -> None:
        """Run the campaign beside the event loop, which serves what the trials need."""
        run = Campaign.of_environment().run
        await anyio.to_thread.run_sync(run, name, trial, lambda: repr(self.last))
        self.here.assert_alive()

    def told(self, *, is_refused: bool) -> str:
        """Refused, answered or wrote. Raises AssertionError when a refused input has written."""
        changed = self.here.store.has_changed()
        if is_refused:
            assert changed == {}, f"refused, and yet written: {changed}"
            return "refused"
        return "wrote" if changed else "answered"

    def posts(self, body: Any, token: str = ALICE) -> tuple[Answer, bool]:
        """The answer to one good request, and whether it is a refusal."""
        content = json.dumps(body).encode()
        return self.sends(Request("POST", b"/mcp", headers_of(body, token), content))

    def sends(self, request: Request) -> tuple[Answer, bool]:
        self.last = request
        answer = self.line.ask(request)
        assert answer is not None, "the server hung up"
        return answer, judging.is_refused(answer, request.content, was_bent=False)


class Endpoint(Target):
    def trial(self, chance: Chance) -> str:
        request, was_bent = request_of(chance, self.messages.request(chance), ALICE)
        self.last = request
        answer = self.line.ask(request)
        if answer is None or request.cut:
            assert request.cut or was_bent, "the server hung up"
            assert answer is None or answer.status < 500, answer
            return self.told(is_refused=True)
        is_refused = judging.is_refused(answer, request.content, was_bent=was_bent)
        return self.told(is_refused=is_refused)


class Socket(Target):
    """One connection, which is opened again when the server ends it for what was no WebSocket."""

    def __init__(self, here: World, line: Line) -> None:
        super().__init__(here, line)
        self._connection: ClientConnection | None = None
        self._open = ExitStack()
        self._probes = 0

    def trial(self, chance: Chance) -> str:
        text, may_end = self._drawn(chance)
        self.last = text
        connection = self._connection or self._connected()
        try:
            connection.send(text, text=chance.one_in(2) or None)
            answers = self._until_probed(connection)
        except websockets.ConnectionClosed as closed:
            self._connection = None
            self._open.close()
            if not may_end:
                raise AssertionError("the server ended the connection") from closed
            return self.told(is_refused=True)
        return self._judged(text, answers)

    def close(self) -> None:
        self._open.close()

    def _drawn(self, chance: Chance) -> tuple[bytes, bool]:
        """A message, and whether it may cost the connection: it may go as text, and be none."""
        method = chance.choice(("subscriptions/listen", "events/stream", None))
        body: Any = self.messages.request(chance, method)
        for _ in range(chance.randrange(3)):
            body = chance.mutated(body)
        if chance.one_in(10):
            body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": body}
        text = chance.encoded(body)
        if chance.one_in(6):
            text = chance.damaged(text)
        return text, not _is_text(text)

    def _connected(self) -> ClientConnection:
        host, port = self.here.address
        connecting = connect(
            f"ws://{host}:{port}/ws",
            additional_headers={"Authorization": f"Bearer {ALICE}"},
            max_size=FRAME_BYTES_MAX,
            open_timeout=PATIENCE_S,
            proxy=None,
        )
        self._connection = self._open.enter_context(connecting)
        return self._connection

    def _until_probed(self, connection: ClientConnection) -> list[Any]:
        """All that came before the answer to a request that is sent after the input."""
        self._probes += 1
        probe = self.messages.request(Chance(0), "events/list") | {"id": f"probe-{self._probes}"}
        connection.send(json.dumps(probe))
        came: list[Any] = []
        while True:
            message = json.loads(connection.recv(timeout=PATIENCE_S))
            if message.get("id") == probe["id"]:
                assert message["error"]["code"] == -32601, message
                return came
            came.append(message)

    def _judged(self, text: bytes, answers: list[Any]) -> str:
        """Frames of watches that earlier inputs opened may stand between."""
        wanted = judging.id_in(text)
        own = [message for message in answers if "method" not in message]
        assert len(own) <= 1, answers
        if own:
            # A watch of nothing, or of tasks that have ended, ends with its result at once.
            return self.told(is_refused=judging.judged(own[0], text))
        if judging.is_notification(text):
            return self.told(is_refused=True)
        self._ends(wanted)
        return self.told(is_refused=False)

    def _ends(self, request_id: Any) -> None:
        """End the watch, and wait until nothing comes of it any more."""
        assert self._connection is not None
        assert request_id is not judging.NO_ID, "neither an answer nor a watch"
        cancel = {"method": "notifications/cancelled", "params": {"requestId": request_id}}
        self._connection.send(json.dumps({"jsonrpc": "2.0", **cancel}))
        self._until_probed(self._connection)


def _is_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
