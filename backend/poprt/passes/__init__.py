"""Passes: each rewrites or checks a model, under the real tool's name where that has the same. One family a
file; what a pass is: `base`. Which of them run, and in which order: `poprt.pipeline`."""

from poprt.passes import checks, elimination, folding, lowering, precision, shapes, surgery
from poprt.passes.base import Pass, PassInfo, Stage, find_pass, get_pass, get_registered_passes, register
from poprt.passes.manager import PassManager
from poprt.passes.patterns import Found, PatternMatcher

__all__ = [
    "Found",
    "Pass",
    "PassInfo",
    "PassManager",
    "PatternMatcher",
    "Stage",
    "checks",
    "elimination",
    "find_pass",
    "folding",
    "get_pass",
    "get_registered_passes",
    "lowering",
    "precision",
    "register",
    "shapes",
    "surgery",
]
