"""The document that lists the passes."""

import make_passes
from poprt.passes import get_registered_passes


def test_the_document_is_written_from_the_registry():
    assert make_passes.FILE.read_text() == make_passes.make_text(), "run `make docs`"


def test_every_pass_of_the_pipeline_is_registered_and_every_registered_one_runs_somewhere():
    listed = {name for _, names in make_passes.LISTS for name in names}
    assert listed == set(get_registered_passes())
