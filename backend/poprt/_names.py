"""Names that the real tool's parts have agreed upon."""

sHostConcatRunnerConfig = "sHostConcatRunnerConfig"
"""Of the metadata property, and of the opaque blob made of it, in which apply_host_concat_split says what the
host concatenates."""
