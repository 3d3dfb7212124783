"""How long it lasts, from which seed, and what is said about an input that did not pass.

OUTLAST_FUZZ_RUNS    how many inputs all targets together get
OUTLAST_FUZZ_SEED    what they are drawn from; `SEED@N` begins with input N of each target
"""

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from outlast.tests.fuzz.chance import Chance

RUNS = 1_200
SEED = "20260728"  # fixed, so that a change of the code is all that a failure can come from
TELL_EVERY = 2_000
SHOWN_MAX = 20_000

# Shares of the inputs. Those that a network round trip decides cost most, and find most.
SHARES = {
    "endpoint": 34,
    "socket": 14,
    "receiver": 10,
    "cursors": 8,
    "polls": 5,
    "tokens": 4,
    "claims": 6,
    "authorization": 4,
    "keys": 4,
    "callbacks": 7,
    "answers": 6,
    "pages": 10,
}


class Failed(AssertionError):
    """An input did not get what every input has to get."""


@dataclass(frozen=True)
class Campaign:
    """All inputs of one run."""

    seed: str
    first: int
    runs: int

    @classmethod
    def of_environment(cls) -> "Campaign":
        seed, _, first = os.environ.get("OUTLAST_FUZZ_SEED", SEED).partition("@")
        return cls(seed, int(first or 0), int(os.environ.get("OUTLAST_FUZZ_RUNS", RUNS)))

    def run(self, target: str, trial: Callable[[Chance], str], shown: Callable[[], str]) -> None:
        """Try the target's share of inputs; `shown` tells the last one. A trial names its outcome.

        An input is drawn from the seed and its own number alone, so that it can be met again
        without those before it.
        """
        count = max(1, self.runs * SHARES[target] // sum(SHARES.values()))
        outcomes: Counter[str] = Counter()
        began = time.monotonic()
        for number in range(self.first, self.first + count):
            try:
                outcomes[trial(Chance(f"{self.seed} {target} {number}"))] += 1
            except Exception as error:
                raise Failed(self._told(target, number, shown())) from error
            done = number - self.first + 1
            if done % TELL_EVERY == 0 or done == count:
                pace = done / max(time.monotonic() - began, 1e-9)
                told = ", ".join(f"{name} {many}" for name, many in sorted(outcomes.items()))
                print(
                    f"fuzz {target}: {done} of {count}, seed {self.seed}, {pace:.0f}/s; {told}",
                    flush=True,
                )

    def _told(self, target: str, number: int, shown: str) -> str:
        test = os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0]
        return (
            f"input {number} of {target} did not pass. To meet it again:\n"
            f"OUTLAST_FUZZ_SEED={self.seed}@{number} make test ARGS={test}\n"
            f"The input: {shown[:SHOWN_MAX]}"
        )
