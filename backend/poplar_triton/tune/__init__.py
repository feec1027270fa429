"""Measures configurations of a model on this machine, and writes the fastest into its
config.pbtxt: `poplar-triton tune`."""
