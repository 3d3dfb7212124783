"""Progress in words: what the status message of a task and the audit say of it."""

import pytest

from outlast.domain.events import Json
from outlast.domain.task import amount
from outlast.service.auditing.words import sentence_of
from outlast.service.cli.client import outcomes

NUMBERS: list[tuple[float, str]] = [
    (0, "0"),
    (-0.0, "0"),
    (3, "3"),
    (3.0, "3"),
    (-7, "-7"),
    (999_999, "999999"),
    (1_000_000, "1000000"),
    (1_234_567, "1234567"),
    (98_765_432.0, "98765432"),
    (2**53 + 1, "9007199254740993"),
    (2**70, "1180591620717411303424"),
    (10**400, "1" + "0" * 400),
    (1e20, "100000000000000000000"),
    (0.5, "0.5"),
    (0.1 + 0.2, "0.3"),
    (100 / 3, "33.3333"),
    (12_345.678, "12345.7"),
    (999_999.7, "1000000"),
    (1_234_567.8, "1234570"),
    (-1_234_567.8, "-1234570"),
    (0.000_012_345_678, "0.0000123457"),
    (0.000_001, "0.000001"),
    # To write these out would help nobody, or cannot be done.
    (1e21, "1e+21"),
    (1.5e300, "1.5e+300"),
    (2.5e-7, "2.5e-07"),
    (float("inf"), "inf"),
    (float("nan"), "nan"),
]


@pytest.mark.parametrize(("number", "written"), NUMBERS)
def test_progress_keeps_its_digits(number: float, written: str) -> None:
    assert amount(number, None) == written
    assert amount(number, number) == f"{written} of {written}"
    told = {"progress": number, "total": number, "message": None}
    assert sentence_of("task.progress_reported", told) == f"progress {written} of {written}"
    assert sentence_of("task.progress_reported", {"progress": number}) == f"progress {written}"


def test_an_amount_of_many_digits_is_read_again_by_the_client() -> None:
    assert outcomes.amount(amount(1_234_567, 98_765_432)) == (1_234_567, 98_765_432)


@pytest.mark.parametrize("odd", [None, "x", [], {}])
def test_what_is_no_number_leaves_the_audit_its_plain_words(odd: Json) -> None:
    """A newer or a hostile release may have written it."""
    for told in ({"progress": odd}, {"progress": 1, "total": odd or "x"}):
        assert sentence_of("task.progress_reported", told) == "told its progress"
