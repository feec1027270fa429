"""Cases for every pass of the real tool that runs here: models that it changes and models that it
leaves unchanged."""

from pass_cases import chip, folding, fusing, patterns, precision, replacing, surgery
from pass_cases.case import Case, make_feeds

CASES: dict[str, Case] = {
    **folding.CASES,
    **fusing.CASES,
    **patterns.CASES,
    **chip.CASES,
    **surgery.CASES,
    **precision.CASES,
    **replacing.CASES,
}

__all__ = ["CASES", "Case", "make_feeds"]
