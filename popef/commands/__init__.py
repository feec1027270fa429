"""The commands `popef` and `popef_dump`, and what only they do: checking, comparing, extracting, rewriting,
showing words, and writing FORMAT.md's tables.

Nothing outside this folder imports from it but its tests; what other commands of the project share stands
beside it, in `console.py` and `arguments.py`.
"""
