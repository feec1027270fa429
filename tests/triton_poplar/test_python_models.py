"""Stubs that read numpy 2 rightly, or not at all; tests/server has the real one."""

from types import SimpleNamespace

import numpy as np
import pytest
from triton_poplar.python_models import prepare


def make_utilities(read):
    class Tensor:
        @staticmethod
        def from_dlpack(name, capsule):
            return SimpleNamespace(as_numpy=lambda: read)

    return SimpleNamespace(Tensor=Tensor)


@pytest.mark.skipif(np.__version__.startswith("1."), reason="nothing is done for numpy 1")
def test_a_stub_that_reads_arrays_rightly_stays_as_it_is():
    import numpy.core.multiarray as functions

    before = functions._ARRAY_API
    utilities = make_utilities(np.arange(3, dtype=np.float32))
    constructor = utilities.Tensor.__init__
    prepare(utilities)
    assert utilities.Tensor.__init__ is constructor
    assert functions._ARRAY_API is before


@pytest.mark.skipif(np.__version__.startswith("1."), reason="nothing is done for numpy 1")
def test_no_model_is_imported_into_a_stub_that_still_reads_arrays_wrongly():
    with pytest.raises(ImportError, match="reads its arrays wrongly; install numpy<2"):
        prepare(make_utilities(np.zeros(3, np.float32)))
