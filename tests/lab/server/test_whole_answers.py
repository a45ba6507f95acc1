"""What the server says, whole: every route, streamed or not, refusals, and what people have reported."""

from tests.helpers.golden import rows_of
from tests.helpers.whole_answers import REQUESTS, answers, lacking, scripted_servers


def test_answers_are_those_on_record(tmp_path):
    """`python -m tests.helpers.whole_answers` writes the record: read its diff before you commit it."""
    with scripted_servers(tmp_path) as servers:
        for asked, found, wanted in zip(REQUESTS, answers(servers), rows_of("answers"), strict=True):
            assert found == wanted, asked
            assert not lacking(asked, found), asked
