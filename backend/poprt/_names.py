"""Names that several parts of the real tool share."""

sHostConcatRunnerConfig = "sHostConcatRunnerConfig"
"""Name of the metadata property, and of the opaque blob made from it, in which
apply_host_concat_split records what the host concatenates."""
