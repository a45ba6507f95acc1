"""What a request asks for is obeyed, or refused by name."""

import pytest
from tests.lab.as_reported.conftest import Try
from tests.lab.as_reported.report import Report

TINY = {"prompt": "Once upon a time", "max_tokens": 3}
REPORTS = [
    Report(
        "ragas#938",
        "a temperature of 1e-8 is refused",
        "/v1/completions",
        {**TINY, "temperature": 1e-8},
        {"choices.0.finish_reason": "length"},
    ),
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.id)
def test_a_field_as_reported(report: Report, on_shipped_model: Try) -> None:
    on_shipped_model(report)
