"""The commands `popef` and `popef_dump`: checking, comparing, extracting, rewriting, showing words,
and writing FORMAT.md's tables.

Only its tests import from this folder. Code shared with the project's other commands is in
`console.py` and `arguments.py` beside it.
"""
