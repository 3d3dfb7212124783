"""A witness over HTTP: the request `add-checkpoint` of C2SP's tlog-witness."""

import base64
import re
from collections.abc import Sequence

import httpx2

from ..domain import errors
from .notes import VerifierKey, opened, signatures_of

ANSWER_S_MAX = 15.0
CONNECT_S_MAX = 5.0
ANSWER_SIZE_MAX = 16 * 1024
OK, CONFLICT = 200, 409

_SIZE = re.compile(r"(0|[1-9][0-9]{0,17})\n?")


class HttpWitness:
    """`Witness` at one URL. With its key, what it answers is believed only if that has signed."""

    def __init__(self, url: str, key: VerifierKey | None = None) -> None:
        self._url, self._key = url.rstrip("/"), key

    @property
    def url(self) -> str:
        """See `Witness.url`."""
        return self._url

    async def cosign(self, old: int, proof: Sequence[bytes], note: str) -> str:
        """See `Witness.cosign`."""
        path = "".join(f"{base64.b64encode(each).decode()}\n" for each in proof)
        status, text = await self._post(f"old {old}\n{path}\n{note}".encode())
        if status == CONFLICT and (known := _SIZE.fullmatch(text)):
            raise errors.WitnessKnows(int(known[1]))
        if status == CONFLICT:
            raise errors.WitnessUnavailable("The witness has signed another tree of this size")
        if status != OK:
            raise errors.WitnessUnavailable(f"The witness answered {status}")
        return self._believed(text, note)

    def _believed(self, lines: str, note: str) -> str:
        try:
            signatures, (text, _) = signatures_of(lines), opened(note)
        except errors.NoteRefused:
            raise errors.WitnessUnavailable("The witness answered no signature lines") from None
        key = self._key
        if key is not None and not any(key.has_signed(text, each) for each in signatures):
            raise errors.WitnessUnavailable("The witness's signature is not of audit_witness_key")
        return lines

    async def _post(self, body: bytes) -> tuple[int, str]:
        """The status and a bounded answer."""
        timeout = httpx2.Timeout(ANSWER_S_MAX, connect=CONNECT_S_MAX)
        answer = b""
        try:
            async with (
                httpx2.AsyncClient(timeout=timeout) as http,
                http.stream("POST", f"{self._url}/add-checkpoint", content=body) as response,
            ):
                async for chunk in response.aiter_bytes():
                    answer += chunk
                    if len(answer) > ANSWER_SIZE_MAX:
                        raise errors.WitnessUnavailable("The witness's answer is too long")
                return response.status_code, answer.decode()
        except httpx2.HTTPError as error:
            raise errors.WitnessUnavailable(
                f"The witness cannot be reached: {type(error).__name__}"
            ) from error
        except UnicodeDecodeError as error:
            raise errors.WitnessUnavailable("The witness's answer is not text") from error
